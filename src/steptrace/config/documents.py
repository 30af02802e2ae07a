"""Reading what a person wrote in YAML into a declared type, with errors that a person can act on."""

import json
import re
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, get_args, get_origin

import msgspec
import yaml

from steptrace.errors import ConfigError
from steptrace.names import near

_T = TypeVar("_T")
#: `key=[` or `key={`: an override that YAML reads as a list or mapping inside a list.
_BRACKETED: Final = re.compile(r"[\w./~+]=[\[{]")
#: A message of msgspec, such as "Expected `int` >= 1 - at `$.data.batch_size`".
_MESSAGE: Final = re.compile(r"(?P<text>.*?)(?: - at (?:`key` in )?`\$(?P<place>.*)`)?", re.DOTALL)


class _Loader(yaml.CSafeLoader if hasattr(yaml, "CSafeLoader") else yaml.SafeLoader):  # type: ignore[misc]
    """A safe loader that refuses duplicate keys, of which YAML keeps the last, and keys that are not strings."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:  # noqa: FBT001, FBT002 - PyYAML's own signature
        seen: set[str] = set()
        for key, _ in node.value:
            problem = None
            if key.tag != "tag:yaml.org,2002:str":
                problem = f"the key '{key.value}' is not a string; quote it"  # YAML reads `no` as false
            elif key.value in seen:
                problem = f"duplicate key '{key.value}'"
            if problem:
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            seen.add(key.value)
        mapping: dict[Hashable, Any] = super().construct_mapping(node, deep=deep)
        return mapping


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping that the YAML file `path` holds.

    Raises:
        ConfigError: the file is missing, is not YAML, holds a key twice or is no mapping.
    """
    text = ""
    try:
        text = path.read_text(encoding="utf-8")
        document = yaml.load(text, Loader=_Loader)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot be read ({error})", where=path) from error
    except yaml.YAMLError as error:
        raise not_yaml(error, where=str(path), text=text) from error
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise ConfigError("is not a mapping", where=path, expected="a mapping `key: value`")
    return document


def not_yaml(error: yaml.YAMLError, *, where: str, text: str = "") -> ConfigError:
    """Return an error that says in one line what PyYAML refused, and where.

    Args:
        error: what PyYAML raised.
        where: the document.
        text: its content, to recognise an override that has to be quoted.
    """
    mark = getattr(error, "problem_mark", None)
    problem = str(getattr(error, "problem", None) or error).splitlines()[0]
    lines = text.splitlines()
    line = lines[mark.line] if mark and mark.line < len(lines) else ""
    return ConfigError(
        f"is not valid YAML: {problem}",
        where=f"{where}, line {mark.line + 1}" if mark else where,
        next_step="quote an override that contains [ or {" if _BRACKETED.search(line) else None,
    )


def lookup(document: Any, key: str) -> Any:
    """Return the value at a dotted `key`, None if there is none."""
    node = document
    for part in key.split("."):
        node = node.get(part) if isinstance(node, Mapping) else None
    return node


def convert(document: Any, kind: type[_T], *, where: str | Path, key: str = "") -> _T:
    """Read plain data into a type with limits.

    Args:
        document: as YAML gives it.
        kind: a msgspec struct, or another type that msgspec converts to.
        where: the file, for messages.
        key: the dotted key of `document` in the file.

    Raises:
        ConfigError: an unknown or missing key, or a value of the wrong type or out of its limits.
    """
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise _readable(str(error), document, kind, where, key) from error


def _readable(message: str, document: Any, kind: Any, where: str | Path, key: str) -> ConfigError:
    """The error of msgspec with the key's full name, the value, and the names that would have been right."""
    match = _MESSAGE.fullmatch(message)
    text, place = (match["text"], match["place"] or "") if match else (message, "")
    parts = [part for part in place.split(".") if part]
    name = f"{key}{place}".lstrip(".")
    if unknown := re.search(r"unknown field `(.*)`", text):
        hint = near(unknown[1], _fields(kind, parts))
        return ConfigError(f"unknown key '{f'{name}.'.lstrip('.')}{unknown[1]}'", where=where, next_step=hint)
    if missing := re.search(r"missing required field `(.*)`", text):
        return ConfigError(f"the key '{f'{name}.'.lstrip('.')}{missing[1]}' is missing", where=where)
    if text.startswith("Invalid enum value"):
        options = [str(option) for option in _options(_type_at(kind, parts))]
        hint = near(str(lookup(document, place.lstrip("."))), options)
        return ConfigError(f"{name}: {text}", where=where, expected=" or ".join(options), next_step=hint)
    if not text.startswith("Expected"):  # a check of two keys together
        return ConfigError(text, where=where)
    value = document if not parts else None if "[" in place else lookup(document, ".".join(parts))
    shown = f"{name or 'it'} is {json.dumps(value, default=str)}" if "[" not in place else f"{name} is wrong"
    return ConfigError(shown, where=where, expected=text.removeprefix("Expected ").replace("`", ""))


def _type_at(kind: Any, parts: Sequence[str]) -> Any:
    """The type below a struct at these keys; None where the structs end."""
    for part in parts:
        fields = msgspec.structs.fields(kind) if isinstance(kind, type) and issubclass(kind, msgspec.Struct) else ()
        kind = next((field.type for field in fields if field.name == part), None)
    return kind


def _fields(kind: Any, parts: Sequence[str]) -> list[str]:
    struct = _type_at(kind, parts)
    return [field.encode_name for field in msgspec.structs.fields(struct)] if struct is not None else []


def _options(kind: Any) -> list[Any]:
    """The values of a Literal, wherever it stands in a type."""
    if get_origin(kind) is Literal:
        return list(get_args(kind))
    return [option for part in get_args(kind) for option in _options(part)]
