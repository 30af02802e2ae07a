"""The figures of a document by name, derived from its fields."""

from collections.abc import Iterator

from msgspec import inspect

from steptrace.documents.base import Document

#: Text that names or explains, and is no outcome to hold against a limit.
_WORDS = frozenset({"name", "hypothesis", "baseline", "digest", "reason", "capacity_source", "device_type", "backend"})


def figures_of(kind: type[Document]) -> dict[str, tuple[str, ...]]:
    """Each figure of a document, and for a field that is itself an object the dotted names of the figures in it.

    Lists are none; names in an object whose keys the program gives are `*`. An object within one is a figure as well,
    since it may be null.
    """
    return dict(_figures(inspect.type_info(kind)))


def _figures(kind: inspect.Type) -> Iterator[tuple[str, tuple[str, ...]]]:
    assert isinstance(kind, inspect.StructType)
    for field in kind.fields:
        inner = _inner(field.type)
        if field.name in _WORDS or isinstance(inner, inspect.VarTupleType | inspect.TupleType):
            continue
        names = tuple(_names(inner))
        if names or not isinstance(inner, inspect.StructType):
            yield field.encode_name, names


def _names(kind: inspect.Type) -> Iterator[str]:
    if isinstance(kind, inspect.DictType):
        yield "*"
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
