"""The figures of a variant by name, which gates hold against limits.

A name is a path: of an object the field, of rows the keys that tell one from another (`trace.labels.loss`,
`trace.queues.7`; of several keys `trace.collectives.by_name.all_reduce, default_pg`).
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import inspect

from steptrace.documents.base import Document
from steptrace.documents.column import keys_of, name_of
from steptrace.documents.comparison import VariantResult
from steptrace.errors import ConfigError
from steptrace.names import meant, near

#: The variant that stands for all.
EVERY_VARIANT: Final = "*"
#: What a gate holds and no document has under this name: the measured syncs, else the predicted ones.
_SYNCS: Final = "syncs.per_step"


def check_key(key: str) -> None:
    """Refuse a gate's key that no variant of any study has; `syncs.per_step` is what was measured, else predicted.

    Raises:
        ConfigError: naming those that are near.
    """
    hint = None if key == _SYNCS else _misfit(inspect.type_info(VariantResult), key)
    if hint is not None:
        expected = f"a key of a variant in comparison.json, such as ratio.low or {_SYNCS}"
        next_step = meant(key, [_SYNCS]) or hint
        raise ConfigError(f"a variant has no figure '{key}'", expected=expected, next_step=next_step)


def _misfit(kind: inspect.Type, key: str) -> str | None:
    """What could stand in place of a key, or of its end, in values of a type; None if the key fits."""
    kind = _bare(kind)
    row = _bare(kind.item_type) if isinstance(kind, inspect.VarTupleType) else kind
    if isinstance(kind, inspect.DictType):  # the program gives the names
        return None
    if not isinstance(row, inspect.StructType) or (row is not kind and all(key.local for key in keys_of(row.cls))):
        return f"leave out '.{key}'" if key else None
    fields = {field.encode_name: field.type for field in row.fields}
    if row is not kind:  # the program gives the row's key, which may hold dots
        return None if key.endswith(tuple(f".{name}" for name in fields)) else f"KEY.{' or KEY.'.join(fields)}"
    name, _, rest = key.partition(".")
    return _misfit(fields[name], rest) if name in fields else near(name, fields)


def _bare(kind: inspect.Type) -> inspect.Type:
    """The type without its description and without null."""
    if isinstance(kind, inspect.Metadata):
        return _bare(kind.type)
    if isinstance(kind, inspect.UnionType):
        return _bare(next(one for one in kind.types if not isinstance(one, inspect.NoneType)))
    return kind


def value_at(node: Any, key: str) -> Any:
    """The value at a dotted key, as JSON has it; None where a group or a row was not measured.

    Raises:
        ConfigError: an object has no such field, or several rows have the same name.
    """
    if isinstance(node, Document):
        names = dict(zip(node.__struct_encode_fields__, msgspec.structs.astuple(node), strict=True))
    elif isinstance(node, tuple):
        names = {name_of(row): row for row in node if isinstance(row, Document)}
    elif isinstance(node, Mapping):
        names = dict(node)
    else:
        return None
    # Names that a program gives may hold dots: of the labels `model` and `model.head` the longer one is meant.
    name = max((name for name in names if f"{key}.".startswith(f"{name}.")), key=len, default=None)
    if name is None and isinstance(node, Document):
        raise ConfigError(f"there is no '{key}' in comparison.json", expected=f"one of {', '.join(names)}")
    if name is None:
        return None
    alike = [row for row in node if name_of(row) == name] if isinstance(node, tuple) else []
    if len(alike) > 1:
        raise ConfigError(f"'{name}' is the name of {len(alike)} rows", expected="rows of one GPU")
    return msgspec.to_builtins(names[name]) if key == name else value_at(names[name], key.removeprefix(f"{name}."))
