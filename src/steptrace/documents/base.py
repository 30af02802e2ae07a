"""What every document is: a frozen struct whose fields carry their meaning; reading and checking one.

A document that is a file of its own (`File`) says which version it is of; a file of another version is refused. To
change a document so that files of before no longer fit, give `schema_version` the next number as default.
"""

from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec

from steptrace.errors import RecordError
from steptrace.files import VERSION_KEY, check_version, write_json


class Document(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A JSON object with known keys. Fields without a default must be there; unmeasured ones are null."""


_Document = TypeVar("_Document", bound=Document)


#: How the values of several runs become one: their median; their mean, for parts that add up to a whole; the value if
#: all have the same; or the first run's.
Runs = Literal["median", "mean", "same", "none"]


def field(doc: str, *, runs: Runs | None = None) -> msgspec.Meta:
    """The meaning of a field, for `Annotated` and the JSON Schema; its unit is in its name (`unit_of`).

    `runs` is for `documents.column.over_runs`; without it the type decides.
    """
    return msgspec.Meta(description=doc, extra={"column": {"runs": runs}} if runs else None)


_UNITS: Final = {
    **{"bytes_per_second": "B/s", "bytes_per_s": "B/s", "bytes": "B"},
    **{"ns": "ns", "ts": "ns", "dur": "ns", "ms": "ms", "pct": "%"},
}


def unit_of(name: str) -> str | None:
    """The unit that the end of a field's name gives: ns of `wait_ns`, B of `bytes_per_step`."""
    name = name.removesuffix("_per_step")
    return next((unit for end, unit in _UNITS.items() if name == end or name.endswith(f"_{end}")), None)


class File(Document, frozen=True, kw_only=True):
    """A document that is a file of its own."""

    schema_version: Annotated[int, field("Version of this document; this one where a file does not say it.")] = 1


class _Version(msgspec.Struct):
    """What is read of a file first."""

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


def version_of(kind: type[Document]) -> int:
    """The present version of a document; 1 of one that is mostly part of others."""
    return next((int(one.default) for one in msgspec.structs.fields(kind) if one.name == VERSION_KEY), 1)


def is_present(path: Path, kind: type[Document]) -> bool:
    """Whether a file is of the present version of a document."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Version).schema_version == version_of(kind)
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
        RecordError: the file is missing, is no JSON, of another version, or does not hold such a document.
    """
    try:
        content = path.read_bytes()
        version = msgspec.json.decode(content, type=_Version).schema_version
        check_version(version_of(kind) if version is msgspec.UNSET else version, path, version_of(kind))
        if issubclass(kind, File):
            return msgspec.json.decode(content, type=kind)
        fields = msgspec.json.decode(content, type=dict[str, Any])
        return msgspec.convert({key: value for key, value in fields.items() if key != VERSION_KEY}, kind)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise RecordError("file is missing", where=path, next_step=next_step) from error
    except (OSError, ValueError) as error:  # msgspec's errors, and text that is not UTF-8
        raise RecordError(
            f"file does not hold a {kind.__name__} ({error})",
            where=path,
            expected="a document of this version of steptrace (docs/schemas/)",
            next_step=next_step,
        ) from error
