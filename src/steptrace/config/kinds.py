"""What kind of value a key of the schema takes, in words for a message."""

import dataclasses
import re
import types
from typing import Any, Final, get_args, get_origin

from steptrace.config.schema import RootConfig

_WORDS: Final[dict[Any, str]] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    list[int]: "a list of whole numbers, such as [0,1]",
    list[str]: "a list of texts, such as [a,b]",
}
#: `equivalence.seeds[0]` is an item of `equivalence.seeds`.
_ITEM: Final = re.compile(r"\[\d+\]\Z")


def expected_at(key: str) -> str | None:
    """Return what the dotted `key` takes, such as `a whole number or null`; None where the schema leaves it open."""
    kind: Any = RootConfig
    for part in _ITEM.sub("", key).split("."):
        if not dataclasses.is_dataclass(kind):
            return None
        kind = next((field.type for field in dataclasses.fields(kind) if field.name == part), None)
    if _ITEM.search(key) and get_origin(kind) is list:
        (kind,) = get_args(kind)
    if isinstance(kind, types.UnionType):
        known = [_WORDS[part] for part in get_args(kind) if part in _WORDS]
        return " or ".join([*known, "null"]) if known else None
    return _WORDS.get(kind) if get_origin(kind) in (None, list) else None
