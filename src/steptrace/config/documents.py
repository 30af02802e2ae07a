"""Reading what a person wrote in YAML into a declared type."""

import re
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import yaml

from steptrace.errors import ConfigError
from steptrace.names import near

_T = TypeVar("_T")
#: What msgspec says of a wrong name, and where in the document.
_WRONG_NAME: Final = re.compile(
    r"(?:Object contains unknown field `(?P<key>.*?)`|Invalid enum value '(?P<value>.*?)')(?: - at `\$\.(?P<at>.*)`)?"
)
#: What it says of a value in place of keys with values.
_NO_KEYS: Final = re.compile(r"Expected `object`, got `\w+`")

_TWICE: Final = "duplicate key"


class _Loader(yaml.CSafeLoader if hasattr(yaml, "CSafeLoader") else yaml.SafeLoader):  # type: ignore[misc]
    """A safe loader that refuses duplicate keys, of which YAML keeps the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:  # noqa: FBT001, FBT002 - PyYAML's own signature
        mapping: dict[Hashable, Any] = super().construct_mapping(node, deep=deep)
        keys = [key.value for key, _ in node.value]
        for number, (key, _) in enumerate(node.value):
            if key.value in keys[:number]:
                raise yaml.constructor.ConstructorError(None, None, f"{_TWICE} '{key.value}'", key.start_mark)
        return mapping


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping that the YAML file `path` holds.

    Raises:
        ConfigError: the file is missing, is not YAML, holds a key twice or is no mapping.
    """
    try:
        document = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot be read ({error})", where=path) from error
    except yaml.YAMLError as error:
        raise not_yaml(error, path) from error
    if not isinstance(document, dict | None):
        raise ConfigError("is not a mapping", where=path, expected="a mapping `key: value`")
    return document or {}


def not_yaml(error: yaml.YAMLError, where: object) -> ConfigError:
    """Return an error that says in one line what PyYAML refused, and where."""
    mark = getattr(error, "problem_mark", None)
    problem = str(getattr(error, "problem", None) or error).splitlines()[0]
    twice = problem.startswith(_TWICE)
    return ConfigError(
        f"is not valid YAML: {problem}",
        where=f"{where}, line {mark.line + 1}" if mark else str(where),
        next_step="keep one of them"
        if twice
        else "quote a text, such as an override, that contains [ { : or @, and indent with spaces",
    )


def lookup(document: Any, key: str) -> Any:
    """Return the value at a dotted `key`, None if there is none."""
    node = document
    for part in key.split("."):
        node = node.get(part) if isinstance(node, Mapping) else None
    return node


def convert(document: Any, kind: type[_T], *, where: str | Path) -> _T:
    """Read plain data into a type with limits.

    Args:
        document: as YAML gives it.
        kind: a msgspec struct, or another type that msgspec converts to.
        where: the file, and the place of `document` in it, for messages.

    Raises:
        ConfigError: an unknown or missing key, or a value of the wrong type or out of its limits.
    """
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(str(error).replace("`$.", "`"), where=where, next_step=_hint(str(error), kind)) from error


def _hint(message: str, kind: Any) -> str | None:
    """For a name that is none of those declared: the nearest of them; for a value, or none: those there are."""
    declared = _without_null(msgspec.inspect.type_info(kind))
    if _NO_KEYS.fullmatch(message) and isinstance(declared, msgspec.inspect.StructType):
        return f"write {{key: value}}, with keys from {', '.join(field.encode_name for field in declared.fields)}"
    match = _WRONG_NAME.fullmatch(message)
    if match is None:
        return None
    for part in match["at"].split(".") if match["at"] else ():
        fields = declared.fields if isinstance(declared, msgspec.inspect.StructType) else ()
        declared = next((_without_null(field.type) for field in fields if field.name == part), declared)
    if isinstance(declared, msgspec.inspect.StructType):
        return near(match["key"], [field.encode_name for field in declared.fields])
    values = declared.values if isinstance(declared, msgspec.inspect.LiteralType) else ()
    return f"choose {' or '.join(map(str, values))}" if values else None


def _without_null(declared: msgspec.inspect.Type) -> msgspec.inspect.Type:
    """A type without its description, and without null if it is one type else."""
    while isinstance(declared, msgspec.inspect.Metadata):
        declared = declared.type
    if isinstance(declared, msgspec.inspect.UnionType):
        others = [one for one in declared.types if not isinstance(one, msgspec.inspect.NoneType)]
        return _without_null(others[0]) if len(others) == 1 else declared
    return declared
