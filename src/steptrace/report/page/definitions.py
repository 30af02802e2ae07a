"""What the figures of a page mean: a section names the columns that it shows, and their declarations explain them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from steptrace.documents.base import Document, shown_columns


@dataclass(frozen=True)
class Definition:
    """A term as the page shows it and one or two sentences on what it means."""

    term: str
    meaning: str


def definitions(columns: Sequence[str]) -> list[Definition]:
    """The meanings of columns, each named as `Kind.column`, in their order."""
    return [_definition(name) for name in columns]


@cache
def _definition(name: str) -> Definition:
    kind, _, column = name.partition(".")
    declared = (
        Definition(one.heading, one.meaning)
        for document in _kinds(Document)
        if document.__name__ == kind
        for one in shown_columns(document)
        if one.name == column
    )
    return next(declared)


def _kinds(kind: type[Document]) -> Iterator[type[Document]]:
    for one in kind.__subclasses__():
        yield one
        yield from _kinds(one)
