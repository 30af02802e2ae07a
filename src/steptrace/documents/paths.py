"""Finds a figure of a variant by its name. Gates compare such figures with limits.

The name is a path: of an object the field, of rows the keys that tell one from another (`trace.labels.loss`,
`trace.queues.7`; of several keys `trace.collectives.by_name.all_reduce, default_pg`).
"""

from collections.abc import Mapping
from functools import cache
from typing import Any, Final

import msgspec
from msgspec import inspect

from steptrace.documents.base import Document, keys_of, name_of
from steptrace.documents.variant import VariantResult
from steptrace.errors import ConfigError, meant, near

#: The most rows that a message names if the wanted one is missing.
_ROWS: Final = 5
#: The name that means every variant.
EVERY_VARIANT: Final = "*"
#: Between a variant's name and its cell of the study's matrix.
CELL: Final = "__"
#: A key of gates that no document has: the measured syncs per step, or the predicted ones if none were measured.
SYNCS_PER_STEP: Final = "syncs.per_step"


_type_of = cache(inspect.type_info)  # 20 ms a call, and gates have many keys


def is_cell_of(name: str, variant: str) -> bool:
    """Whether this is the name of a variant in one cell of its study's matrix: `loop__batch_size-32` of `loop`."""
    return name.startswith(f"{variant}{CELL}")


def check_key(key: str) -> None:
    """Refuse a gate's key that no variant of any study has. `syncs.per_step` is allowed.

    Raises:
        ConfigError: naming those that are near.
    """
    hint = None if key == SYNCS_PER_STEP else _misfit(_type_of(VariantResult), key)
    if hint is not None:
        expected = f"a key of a variant in comparison.json, such as ratio.low or {SYNCS_PER_STEP}"
        next_step = meant(key, [SYNCS_PER_STEP]) or hint
        raise ConfigError(f"a variant has no figure '{key}'", expected=expected, next_step=next_step)


def _misfit(kind: inspect.Type, key: str) -> str | None:
    """The names that could replace a key, or its end, in values of a type; None if the key fits."""
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
        return _bare(next(accepted for accepted in kind.types if not isinstance(accepted, inspect.NoneType)))
    return kind


def value_at(node: Any, key: str) -> Any:
    """The value at a dotted key, as JSON has it; None where a group or a table was not measured.

    Raises:
        ConfigError: an object has no such field, a table no such row, or several rows have the same name.
    """
    if isinstance(node, Document):
        fields = zip(node.__struct_encode_fields__, msgspec.structs.astuple(node), strict=True)
        names = {name: value for name, value in fields if value is not msgspec.UNSET}
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
    if name is None and names:
        rows = f"{', '.join(list(names)[:_ROWS])}{', ...' if len(names) > _ROWS else ''}"
        asked = key if isinstance(node, Mapping) else key.rpartition(".")[0]
        raise ConfigError(f"there is no row '{asked}' here", expected=f"one of {rows}", next_step=meant(asked, names))
    if name is None:
        return None
    alike = [row for row in node if name_of(row) == name] if isinstance(node, tuple) else []
    if len(alike) > 1:
        raise ConfigError(f"'{name}' is the name of {len(alike)} rows", expected="rows of one GPU")
    return msgspec.to_builtins(names[name]) if key == name else value_at(names[name], key.removeprefix(f"{name}."))
