"""The figures of a variant by name, which gates hold against limits.

A name is a path: of an object the field, of rows the key that tells one from another (`trace.sections.loss`).
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import inspect

from steptrace.documents.base import Document
from steptrace.documents.column import by_key, keys_of
from steptrace.documents.comparison import VariantResult
from steptrace.errors import ConfigError
from steptrace.names import near

#: The variant that stands for all.
EVERY_VARIANT: Final = "*"


def check_key(key: str) -> None:
    """Refuse a gate's key that no variant of any study has; `syncs.per_step` is what was measured, else predicted.

    Raises:
        ConfigError: naming those that are near.
    """
    hint = None if key == "syncs.per_step" else _misfit(inspect.type_info(VariantResult), key)
    if hint is not None:
        expected = "a key of a variant in comparison.json, such as ratio.low or syncs.per_step"
        raise ConfigError(f"a variant has no figure '{key}'", expected=expected, next_step=hint)


def _misfit(kind: inspect.Type, key: str, at: str = "") -> str | None:
    """What could stand in place of a key within a type that the path `at` leads to; None if the key fits."""
    kind = _inner(kind)
    row = _inner(kind.item_type) if isinstance(kind, inspect.VarTupleType) else kind
    if isinstance(kind, inspect.DictType):  # the program gives the names
        return None
    if not isinstance(row, inspect.StructType) or (row is not kind and len(keys_of(row.cls)) != 1):
        return near(f"{at}.{key}", [at]) if key else None
    names = [field.encode_name for field in row.fields]
    if row is not kind:  # the program gives the row's key, which may hold dots
        fits = any(key.endswith(f".{name}") for name in names)
        return None if fits else near(key, [f"{at}.KEY.{name}" for name in names])
    if not key:  # a gate can demand that there is none, as of `memory.oom`
        return None if "." in at else f"choose one of: {', '.join(f'{at}.{name}' for name in names)}"
    name, _, rest = key.partition(".")
    if name not in names:
        before = f"{at}." if at else ""
        return near(f"{before}{name}", [f"{before}{one}" for one in names])
    return _misfit(row.fields[names.index(name)].type, rest, f"{at}.{name}" if at else name)


def _inner(kind: inspect.Type) -> inspect.Type:
    """The type without its description and without null."""
    if isinstance(kind, inspect.Metadata):
        return _inner(kind.type)
    if isinstance(kind, inspect.UnionType):
        return _inner(next(one for one in kind.types if not isinstance(one, inspect.NoneType)))
    return kind


def value_at(node: Any, key: str) -> Any:
    """The value at a dotted key, as JSON has it; None where a group or a row was not measured.

    Raises:
        ConfigError: an object has no such field.
    """
    if isinstance(node, Document):
        names = dict(zip(node.__struct_encode_fields__, msgspec.structs.astuple(node), strict=True))
    elif isinstance(node, tuple):
        names = {str(key): row for (key, *_), row in by_key(node).items()}
    elif isinstance(node, Mapping):
        names = dict(node)
    else:
        return None
    for name, value in names.items():  # names that a program gives may hold dots
        if key == name:
            return msgspec.to_builtins(value)
        if key.startswith(f"{name}."):
            return value_at(value, key.removeprefix(f"{name}."))
    if isinstance(node, Document):
        raise ConfigError(f"there is no '{key}' in comparison.json", expected=f"one of {', '.join(names)}")
    return None
