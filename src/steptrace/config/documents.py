"""Reading a YAML document that a person wrote, with errors a person can act on."""

import json
import math
import re
from collections.abc import Hashable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from steptrace.errors import ConfigError
from steptrace.names import near

#: `key=[` or `key={`: an override that YAML reads as a list or mapping inside a list.
_BRACKETED = re.compile(r"[\w./~+]=[\[{]")
_LARGEST = 2**63
_DEEPEST = 50
_QUOTED = re.compile(r""" "[^"]*" | '[^']*' """, re.VERBOSE)


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
        ConfigError: the file is missing, is not YAML, is nested too deep, holds a key twice or is no mapping.
    """
    text = ""
    try:
        text = path.read_text(encoding="utf-8")
        _check_depth(text, path)
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


def _check_depth(text: str, path: Path) -> None:
    """Refuse what is nested too deep before anything recurses into it: in C, that ends the process."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            line = event.start_mark.line + 1 if event.start_mark else 1
            raise ConfigError(f"is nested more than {_DEEPEST} deep", where=f"{path}, line {line}")


def lookup(document: Mapping[str, Any], key: str) -> Any:
    """Return the value at a dotted `key`, None if there is none."""
    node: Any = document
    for part in key.split("."):
        node = node.get(part) if isinstance(node, Mapping) else None
    return node


def not_yaml(error: yaml.YAMLError, *, where: str, text: str = "") -> ConfigError:
    """Return an error that says in one line what PyYAML found, and where.

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
        next_step="quote an override that contains [ or {" if _BRACKETED.search(_QUOTED.sub("", line)) else None,
    )


@cache
def _schema(path: Path) -> dict[str, Any]:
    schema: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return schema


def check_numbers(document: Any, *, where: str | Path, key: str = "") -> None:
    """Refuse numbers that no result could be written with: nan, infinities, and whole numbers beyond 64 bits.

    Raises:
        ConfigError: naming the key.
    """
    if isinstance(document, Mapping):
        for name, value in document.items():
            check_numbers(value, where=where, key=f"{key}.{name}" if key else str(name))
    elif isinstance(document, list):
        for index, value in enumerate(document):
            check_numbers(value, where=where, key=f"{key}.{index}")
    elif isinstance(document, float) and not math.isfinite(document):
        raise ConfigError(f"{key} is {document}", where=where, expected="a finite number")
    elif isinstance(document, int) and not -_LARGEST <= document < _LARGEST:
        raise ConfigError(f"{key} is {document:.3g}", where=where, expected="a whole number of at most 64 bits")


def check(document: Mapping[str, Any], schema_path: Path, *, where: str | Path) -> None:
    """Validate `document` against a JSON schema.

    Raises:
        ConfigError: with one line naming the key, what it holds and what was expected.
    """
    check_numbers(document, where=where)
    validator = jsonschema.Draft202012Validator(_schema(schema_path))
    errors = sorted(validator.iter_errors(document), key=lambda error: (len(error.path), str(error.path)))
    if errors:
        raise _readable(errors[0], where)


def _readable(error: jsonschema.ValidationError, where: str | Path) -> ConfigError:
    key = ".".join(str(part) for part in error.absolute_path)
    schema: dict[str, Any] = error.schema if isinstance(error.schema, dict) else {}
    expected, limit, found = schema.get("description"), schema.get(str(error.validator)), error.instance
    inside = f" in '{key}'" if key else ""
    match error.validator:
        case "additionalProperties":
            known = list(schema.get("properties", {}))
            name = next(name for name in _strings(found) if name not in known)
            return ConfigError(f"unknown key '{name}'{inside}", where=where, next_step=near(name, known))
        case "pattern" if not key or "propertyNames" in error.absolute_schema_path:
            return ConfigError(f"'{found}' is not a valid name{inside}", where=where, expected=expected)
        case "required":
            missing = next(name for name in limit or () if name not in _strings(found))
            return ConfigError(f"the key '{missing}' is missing{inside}", where=where)
        case "uniqueItems":
            return ConfigError(f"'{key}' holds a duplicate value", where=where, expected=expected)
        case _:
            return ConfigError(f"'{key}' is {json.dumps(found)}", where=where, expected=expected or error.message)


def _strings(found: object) -> list[str]:
    return [str(item) for item in found] if isinstance(found, Iterable) else []
