"""The figures of a document by name, derived from its fields."""

from collections.abc import Iterator

import msgspec
from msgspec import inspect

from steptrace.documents.base import Document

#: Text that names or explains, and is no outcome to hold against a limit.
_WORDS = frozenset({"name", "hypothesis", "baseline", "digest", "reason", "capacity_source", "device_type", "backend"})


def figures_of(kind: type[Document]) -> dict[str, tuple[str, ...]]:
    """Each figure of a document, and for a field that is itself an object the dotted names of the figures in it.

    Lists are none; names in an object whose keys the program gives are `*`. An object within one is a figure as well,
    since it may be null.
    """
    found = {}
    for field in _struct(msgspec.inspect.type_info(kind)).fields:
        inner = _inner(field.type)
        if field.name in _WORDS or isinstance(inner, inspect.VarTupleType | inspect.TupleType):
            continue
        names = tuple(_names(inner))
        if names or not isinstance(inner, inspect.StructType):
            found[field.encode_name] = names
    return found


def _names(kind: inspect.Type) -> Iterator[str]:
    if isinstance(kind, inspect.DictType):
        yield "*"
    elif isinstance(kind, inspect.StructType):
        for field in kind.fields:
            inner = _inner(field.type)
            if field.name in _WORDS or isinstance(inner, inspect.VarTupleType | inspect.TupleType):
                continue
            below = tuple(_names(inner))
            if below:
                yield field.encode_name  # a gate can demand that there is none, as of `memory.oom`
                yield from (f"{field.encode_name}.{name}" for name in below)
            elif not isinstance(inner, inspect.StructType):
                yield field.encode_name


def _inner(kind: inspect.Type) -> inspect.Type:
    """The type without its description and without null."""
    if isinstance(kind, inspect.Metadata):
        return _inner(kind.type)
    if isinstance(kind, inspect.UnionType):
        return _inner(next(one for one in kind.types if not isinstance(one, inspect.NoneType)))
    return kind


def _struct(kind: inspect.Type) -> inspect.StructType:
    assert isinstance(kind, inspect.StructType)
    return kind
