"""The figures of a document by name, derived from its fields; those of a variant are what a gate can name.

A name is a path: of an object the field, of rows the key that tells one from another (`trace.sections.loss`).
"""

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cache
from typing import Any, Final

import msgspec
from msgspec import inspect

from steptrace.documents.base import Document
from steptrace.documents.column import by_key, keys_of
from steptrace.documents.comparison import VariantResult
from steptrace.errors import ConfigError
from steptrace.names import near

#: Text that names or explains, and is no outcome to hold against a limit.
_WORDS = frozenset(
    {
        "name",
        "hypothesis",
        "baseline",
        "digest",
        "reason",
        "capacity_source",
        "device",
        "device_type",
        "backend",
        "schema_version",
    }
)


def figures_of(kind: type[Document]) -> dict[str, tuple[str, ...]]:
    """Each figure of a document, and for a field that is itself an object the dotted names of the figures in it.

    Names in an object whose keys the program gives are `*`, as is the key of rows; other lists are no figures. An
    object within one is a figure as well, since it may be null.
    """
    return dict(_figures(inspect.type_info(kind)))


def _figures(kind: inspect.Type) -> Iterator[tuple[str, tuple[str, ...]]]:
    assert isinstance(kind, inspect.StructType)
    for field in kind.fields:
        inner = _inner(field.type)
        if field.name in _WORDS or isinstance(inner, inspect.TupleType):
            continue
        names = tuple(_names(inner))
        if names or not isinstance(inner, inspect.StructType | inspect.VarTupleType):
            yield field.encode_name, names


def _names(kind: inspect.Type) -> Iterator[str]:
    if isinstance(kind, inspect.DictType):
        yield "*"
    elif isinstance(kind, inspect.VarTupleType):
        row = _inner(kind.item_type)
        if isinstance(row, inspect.StructType) and len(keys_of(row.cls)) == 1:
            for name, below in _figures(row):
                yield from (f"*.{one}" for one in (name, *(f"{name}.{inside}" for inside in below)))
    elif isinstance(kind, inspect.StructType):
        for name, below in _figures(kind):
            yield name  # a gate can demand that there is none, as of `memory.oom`
            yield from (f"{name}.{one}" for one in below)


def _inner(kind: inspect.Type) -> inspect.Type:
    """The type without its description and without null."""
    if isinstance(kind, inspect.Metadata):
        return _inner(kind.type)
    if isinstance(kind, inspect.UnionType):
        return _inner(next(one for one in kind.types if not isinstance(one, inspect.NoneType)))
    return kind


@cache
def gate_figures() -> Mapping[str, tuple[str, ...]]:
    """What a gate can hold: a variant's figures in comparison.json, and for a group of them the names in it.

    `*` stands for names that the program gives (its labels), and `per_step` for the count that was measured, else
    predicted.
    """
    figures = figures_of(VariantResult)
    return figures | {"syncs": (*figures["syncs"], "per_step")}


#: The variant that stands for all.
EVERY_VARIANT: Final = "*"


def check_key(key: str) -> None:
    """Refuse a gate's key that no variant of any study has.

    Raises:
        ConfigError: naming those that are near.
    """
    group, _, figure = key.partition(".")
    names = gate_figures().get(group)
    if names is None:
        raise ConfigError(
            f"a variant has no figure '{key}'",
            expected="a key of a variant in comparison.json, such as ratio.low or syncs.per_step",
            next_step=near(group, gate_figures()),
        )
    if figure not in (names or ("",)) and not any(fnmatchcase(figure, name) for name in names if "*" in name):
        if names and not figure:
            hint = f"known: {', '.join(f'{group}.{name}' for name in names if '.' not in name)}"
        else:
            hint = near(key, [f"{group}.{name}" for name in names] or [group])
        raise ConfigError(f"a variant has no figure '{key}'", next_step=hint)


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
