"""The figures of a document by name, derived from its fields; those of a variant are what a gate can name."""

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Final

from msgspec import inspect

from steptrace.documents.base import Document
from steptrace.documents.comparison import VariantResult
from steptrace.errors import ConfigError
from steptrace.names import near

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


#: What a gate can hold: a variant's figures in comparison.json, and for a group of them the names in it. `*` stands for
#: names that the program gives (its sections), and `per_step` for the count that was measured, else predicted.
FIGURES: Final[Mapping[str, tuple[str, ...]]] = {
    group: (*names, "per_step") if group == "syncs" else names for group, names in figures_of(VariantResult).items()
}
#: The variant that stands for all.
EVERY_VARIANT: Final = "*"


def check_key(key: str) -> None:
    """Refuse a gate's key that no variant of any study has.

    Raises:
        ConfigError: naming those that are near.
    """
    group, _, figure = key.partition(".")
    names = FIGURES.get(group)
    if names is None:
        raise ConfigError(
            f"a variant has no figure '{key}'",
            expected="a key of a variant in comparison.json, such as ratio.low or syncs.per_step",
            next_step=near(group, FIGURES),
        )
    if figure not in (names or ("",)) and not any(fnmatchcase(figure, name) for name in names if "*" in name):
        if names and not figure:
            hint = f"known: {', '.join(f'{group}.{name}' for name in names)}"
        else:
            hint = near(key, [f"{group}.{name}" for name in names] or [group])
        raise ConfigError(f"a variant has no figure '{key}'", next_step=hint)
