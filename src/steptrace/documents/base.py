"""The base of all documents. Their fields declare what schemas, tables, pages, docs and diffs are made from.

A document is a frozen struct. A document that is a file (`File`) has a version, and a file of another version is
refused. If a change makes earlier files unreadable, give `schema_version` the next number as its default;
`documents.versions` finds the changes that need it.

A row is a struct whose fields are `Annotated` with `key` (tells rows apart), `column` (shown on pages), or `field` (in
files only). All three make msgspec's metadata, so that reading, checking and schemas need nothing else; `columns_of`
reads the rest. A table that needs more than this has its own template.

A field that holds numbers declares their `Kind`. The kind determines how the numbers of several runs are combined
(`documents.runs`), how two traces are compared (`documents.sides`), and which figures a page shows per step.
"""

import importlib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Final, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from steptrace.errors import RecordError
from steptrace.files import VERSION_KEY, check_version, read_bytes, write_json


class Document(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A JSON object with known keys. Fields without a default must be there; unmeasured ones are null."""


_Document = TypeVar("_Document", bound=Document)


#: The kind of a number: how a run or a trace without the row counts, and how several numbers are combined.
#:
#: - `total`: a sum over all steps. A missing row counts 0. Pages and diffs show it per step.
#: - `sum`: a sum over something other than the steps, such as the bytes that are live at one instant. A missing row
#:   counts 0.
#: - `mean`: a typical value: a mean, a median, a percentile.
#: - `min`, `max`: the least or the greatest value; of several runs the least or the greatest of all.
#: - `rate`: per step or per second.
#: - `share`: a part of a whole, as a fraction or in percent.
#: - `fact`: a value that does not vary, such as a rank; null if runs disagree.
#: - `first`: a value that only makes sense within one run, such as an instant; of several runs the first run's.
#:
#: A missing row counts for `total` and `sum` alone: the other kinds are taken over the runs that have the row.
Kind = Literal["total", "sum", "mean", "min", "max", "rate", "share", "fact", "first"]
#: How the values of several runs are combined, if the kind leaves a choice.
Centre = Literal["median", "mean"]


def field(doc: str, *, kind: Kind | None = None, centre: Centre = "median") -> msgspec.Meta:
    """The meaning of a field, for `Annotated` and the JSON Schema; its unit is in its name (`unit_of`).

    `kind` is for fields that hold numbers. Fields without numbers may be a `fact`, or the `first` run's.
    """
    return msgspec.Meta(description=doc, extra={"column": {"kind": kind, "centre": centre}} if kind else None)


#: A table of a trace whose rows others name by their numbers.
TraceTable = Literal["threads", "steps", "ops", "launches", "kernels", "frames", "labels", "call_tree"]


def reference(table: TraceTable, doc: str = "", *, kind: Kind | None = None, is_key: bool = False) -> msgspec.Meta:
    """Declare a column of row numbers of another table, or of the same; `check_references` holds them to its length."""
    meaning = f"Row of `{table}`: {doc}" if doc else f"Row of `{table}`."
    return msgspec.Meta(description=meaning, extra={"column": {"kind": kind, "is_key": is_key, "table": table}})


_UNITS: Final = {
    **{"bytes_per_second": "B/s", "bytes_per_s": "B/s", "bytes": "B"},
    **{"ns": "ns", "ts": "ns", "dur": "ns", "ms": "ms", "pct": "%"},
}


def unit_of(name: str) -> str | None:
    """The unit that the end of a field's name gives: ns of `wait_ns`, B of `bytes_per_step`."""
    name = name.removesuffix("_per_step")
    return next((unit for end, unit in _UNITS.items() if name == end or name.endswith(f"_{end}")), None)


class File(Document, frozen=True, kw_only=True):
    """A document that is stored as one file."""

    schema_version: Annotated[
        int, field("Version of this document; this one where a file does not say it.", kind="first")
    ] = 1


class _Version(msgspec.Struct):
    """The part of a file that is read first."""

    schema_version: int | msgspec.UnsetType = msgspec.UNSET


def convert(value: Any, kind: type[_Document]) -> _Document:
    """Plain JSON data as a document.

    Raises:
        RecordError: a key is missing, unknown, or holds a value of another type; the message names the place.
    """
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise RecordError(f"not a {kind.__name__} ({error})", expected="the keys of docs/schemas/") from error


_Value = TypeVar("_Value")


def decode(content: bytes, kind: type[_Value]) -> _Value:
    """The value of a type that JSON holds.

    Raises:
        ValueError: it is no JSON, nested too deeply, or of another type (`msgspec.ValidationError`).
    """
    try:
        return msgspec.json.decode(content, type=kind)
    except RecursionError as error:
        raise ValueError("JSON is nested too deeply") from error


def version_of(kind: type[Document]) -> int:
    """The present version of a document; 1 if it declares none, as a document that is only part of others."""
    return next((int(member.default) for member in msgspec.structs.fields(kind) if member.name == VERSION_KEY), 1)


def is_present(path: Path, kind: type[Document]) -> bool:
    """Whether a file is of the present version of a document."""
    try:
        return decode(read_bytes(path), _Version).schema_version == version_of(kind)
    except (OSError, ValueError):
        return False


def write(path: Path, document: Document) -> Path:
    """Write a document as indented JSON in one step, and return its path."""
    return write_json(path, {VERSION_KEY: version_of(type(document)), **msgspec.to_builtins(document)})


def read(
    path: Path, kind: type[_Document], *, next_step: str = "make it again: run the study, or steptrace analyze"
) -> _Document:
    """The document in a JSON file; `next_step` is what an error advises.

    Raises:
        RecordError: the file is missing, is no JSON, of another version or kind, or does not hold such a document.
    """
    try:
        content = read_bytes(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise RecordError("file is missing", where=path, next_step=next_step) from error
    except OSError as error:
        raise RecordError(f"file cannot be read ({error.strerror or error})", where=path) from error
    try:
        version = decode(content, _Version).schema_version
        check_version(version_of(kind) if version is msgspec.UNSET else version, path, version_of(kind), next_step)
        if issubclass(kind, File):
            return decode(content, kind)
        fields = decode(content, dict[str, Any])
        return msgspec.convert({key: value for key, value in fields.items() if key != VERSION_KEY}, kind)
    except RecordError:  # of another version
        _refuse_other_kind(content, path, kind)
        raise
    except ValueError as error:  # msgspec's errors, and text that is not UTF-8
        _refuse_other_kind(content, path, kind)
        raise RecordError(
            f"file does not hold a {kind.__name__} ({error})",
            where=path,
            expected="a document of this version of steptrace (docs/schemas/)",
            next_step=next_step,
        ) from error


#: The first bytes of compressed files.
_GZIP: Final = b"\x1f\x8b"


def _refuse_other_kind(content: bytes, path: Path, wanted: type[Document]) -> None:
    """Raise `RecordError` if a file that could not be read as one kind of document is of another kind."""
    # Imported by name and late: it imports all documents, and a training should not depend on them for a message.
    kinds = importlib.import_module("steptrace.documents.kinds")

    if content.startswith(_GZIP):
        raise RecordError(
            f"file is no {kinds.name_of_file(wanted)}: it is compressed, as traces are",
            where=path,
            expected=f"a {kinds.name_of_file(wanted)}",
            next_step="steptrace analyze reads traces, and steptrace diff compares two of them",
        )
    try:
        kind_found = kinds.kind_of(decode(content, object))
    except ValueError:
        return
    if kind_found is not None and kind_found.document is not wanted:
        raise RecordError(
            f"file is no {kinds.name_of_file(wanted)}: it holds {kind_found.holds} ({kind_found.name})",
            where=path,
            expected=f"a {kinds.name_of_file(wanted)}",
            next_step=kind_found.next_step,
        )


@dataclass(frozen=True)
class Column:
    """A field of a row as tables, pages and docs take it.

    Attributes:
        name: its key in JSON, and the column's name in tables.
        dtype: `int64`, `float64`, `bool` or `string`; empty for many values.
        nullable: whether it may be null, which stands for what was not measured.
        heading: above it on a page; empty if pages leave it out.
        kind: what its numbers are; None of words.
        centre: how the values of several runs become one: by default their median. Parts of a whole take the mean,
            so that they still add up to it.
        local: a key that holds within one trace only, such as a line's number: traces are compared without it.
        is_place: whether it is the file of a place in the program: a page shows the row's `line`, `function` and `code`
            with it.
        table: whose rows its values number, from 0; None of any other value.
        plain: whether its heading says it all, so that a page does not explain it.
    """

    name: str
    dtype: str
    meaning: str
    unit: str | None = None
    nullable: bool = False
    heading: str = ""
    kind: Kind | None = None
    centre: Centre = "median"
    is_key: bool = False
    local: bool = False
    is_place: bool = False
    table: TraceTable | None = None
    plain: bool = False

    @property
    def is_number(self) -> bool:
        """Whether it holds numbers."""
        return self.dtype in ("int64", "float64")

    @property
    def total(self) -> bool:
        """Whether it is a sum over all steps, which pages and diffs show per step."""
        return self.kind == "total"

    @property
    def counts_missing_rows(self) -> bool:
        """Whether a run, or a trace, without the row counts 0."""
        return self.kind in ("total", "sum")

    def value_in(self, row: Document) -> Any:
        """The value of this column in a row."""
        return getattr(row, attributes_of(type(row))[self.name])


def column(
    heading: str,
    meaning: str,
    unit: str | None = None,
    *,
    kind: Kind | None = None,
    centre: Centre = "median",
    plain: bool = False,
) -> msgspec.Meta:
    """Declare figures, or words, that a page shows.

    Args:
        heading: above the column.
        meaning: what it is, for pages, schemas and docs.
        unit: where the field's name does not say it.
        kind: what its numbers are.
        centre: how the values of several runs become one.
        plain: whether the heading says it all, so that a page does not explain it.
    """
    return _meta(meaning, unit, heading=heading, kind=kind, centre=centre, plain=plain)


def key(heading: str, meaning: str, unit: str | None = None, *, local: bool = False) -> msgspec.Meta:
    """Declare a column that, with the row's other keys, says which row it is."""
    return _meta(meaning, unit, heading=heading, is_key=True, local=local)


def place_key(heading: str, meaning: str) -> msgspec.Meta:
    """Declare a key that is the file of a place in the program.

    The row has `line` and `function` as well, and may have `code`.
    """
    return _meta(meaning, None, heading=heading, is_key=True, is_place=True)


def _meta(meaning: str, unit: str | None, **declared: Any) -> msgspec.Meta:
    return msgspec.Meta(description=meaning, extra={"column": {**declared, "unit": unit} if unit else declared})


#: The type of the field `runs`, which says in how many runs of a variant a row was.
InRuns = Annotated[
    int | msgspec.UnsetType,
    msgspec.Meta(description="Of a variant: how many of its runs have this. Not there in the summary of one trace."),
]


class Row(Document, frozen=True, kw_only=True):
    """A row of a table, of one trace or of a variant's runs.

    Tables in Parquet files are of one trace, so they have no column `runs`, and `columns_of` leaves it out.
    """

    runs: InRuns = msgspec.UNSET


_DTYPES: Final = {int: "int64", float: "float64", str: "string", bool: "bool"}


@cache
def columns_of(kind: type[Document]) -> tuple[Column, ...]:
    """The columns of a kind of row, in their order: all fields that say what they mean, without `InRuns`."""
    hints = get_type_hints(kind, include_extras=True)
    fields = zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True)
    names = [(field, name) for field, name in fields if hints[field] != InRuns]
    metas = ((name, hints[field], getattr(hints[field], "__metadata__", (None,))[0]) for field, name in names)
    return tuple(_column(name, hint, meta) for name, hint, meta in metas if isinstance(meta, msgspec.Meta))


_meanings: Final[dict[type[Document], str]] = {}


def described(text: str) -> Callable[[type[_Document]], type[_Document]]:
    """Say what documents of a kind are, for pages and docs.

    A docstring would not do: Python drops docstrings under `-OO`. The text becomes the docstring as well.
    """

    def describe(kind: type[_Document]) -> type[_Document]:
        _meanings[kind] = kind.__doc__ = inspect.cleandoc(text)
        return kind

    return describe


def is_described(kind: type[Document]) -> bool:
    """Whether `described` says what documents of a kind are."""
    return kind in _meanings


def meaning_of(kind: type[Document]) -> str:
    """The declared meaning of a kind of document, on one line.

    Raises:
        KeyError: nothing describes the kind.
    """
    return " ".join(_meanings[kind].split())


@cache
def keys_of(kind: type[Document]) -> tuple[Column, ...]:
    """The columns that together say which row of a kind one is."""
    return tuple(column for column in columns_of(kind) if column.is_key)


def shown_columns(kind: type[Document]) -> tuple[Column, ...]:
    """The columns of a kind of row that a page shows."""
    return tuple(column for column in columns_of(kind) if column.heading)


@cache
def attributes_of(kind: type[Document]) -> dict[str, str]:
    """The attribute of a kind of row that holds each key."""
    return dict(zip(kind.__struct_encode_fields__, kind.__struct_fields__, strict=True))


def _column(name: str, hint: Any, meta: msgspec.Meta) -> Column:
    plain = hint.__origin__
    kinds = get_args(plain) if get_origin(plain) not in (dict, tuple, Literal) else (plain,)
    values = [kind for kind in (kinds or (plain,)) if kind is not NoneType]
    if get_origin(values[0]) is Literal:
        dtype = "string"
    elif len(values) == 1:
        dtype = _DTYPES.get(values[0], "")
    else:
        dtype = ""
    declared = {"unit": unit_of(name), **(meta.extra or {}).get("column", {})}
    return Column(name, dtype, meta.description or "", nullable=NoneType in kinds, **declared)


#: The values of a row's keys.
Key = tuple[Any, ...]
_Row = TypeVar("_Row", bound=Document)


def by_key(rows: Sequence[_Row]) -> dict[Key, _Row]:
    """Rows by the values of their keys; all rows of a kind without keys have the empty key."""
    return {tuple(column.value_in(row) for column in keys_of(type(row))): row for row in rows}


def name_of(row: Document) -> str:
    """The values of a row's keys that are not local to one trace, without nulls."""
    return ", ".join(
        str(value) for key in keys_of(type(row)) if not key.local and (value := key.value_in(row)) is not None
    )
