"""What every document is: a frozen struct whose fields carry their meaning and unit; reading and checking one."""

from pathlib import Path
from typing import Any, TypeVar

import msgspec

from steptrace.errors import RecordError
from steptrace.files import write_json


class Document(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A JSON object with known keys. Fields without a default must be there; unmeasured ones are null."""


_Document = TypeVar("_Document", bound=Document)


def field(doc: str, unit: str | None = None) -> msgspec.Meta:
    """The meaning of a field and its unit, for `Annotated`; both stand in the JSON Schema."""
    return msgspec.Meta(description=doc, extra_json_schema={"unit": unit} if unit else None)


def convert(value: Any, kind: type[_Document]) -> _Document:
    """Plain JSON data as a document.

    Raises:
        RecordError: a key is missing, unknown, or holds a value of another type; the message names the place.
    """
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise RecordError(f"not a {kind.__name__} ({error})", expected="the keys of docs/schemas/") from error


def write(path: Path, document: Document) -> Path:
    """Write a document as indented JSON in one step, and return its path."""
    return write_json(path, msgspec.to_builtins(document))


def read(
    path: Path, kind: type[_Document], *, next_step: str = "make it again: run the study, or steptrace analyze"
) -> _Document:
    """The document in a JSON file; `next_step` is what an error advises.

    Raises:
        RecordError: the file is missing, is no JSON, or does not hold such a document.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise RecordError("file is missing", where=path, next_step=next_step) from error
    except (OSError, msgspec.DecodeError) as error:
        raise RecordError(
            f"file does not hold a {kind.__name__} ({error})",
            where=path,
            expected="a document of this version of steptrace (docs/schemas/)",
            next_step=next_step,
        ) from error
