"""What every document is: a frozen struct whose fields carry their meaning and unit; reading and checking one.

A document that is a file of its own (`File`) says which version it is of. To change one so that older files are no
longer read: give its `schema_version` the next number as default, and its `migrations` a function from the last one.
Of a file of version 1 that function gets only keys that the present type has (`known_keys`): where it reads
others, have `migrations[1]` carry them over first.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import msgspec
from msgspec import inspect

from steptrace.errors import RecordError
from steptrace.files import VERSION_KEY, check_version, write_json


class Document(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A JSON object with known keys. Fields without a default must be there; unmeasured ones are null."""


_Document = TypeVar("_Document", bound=Document)


#: How the values of several runs become one: their median, the value if all have the same, or the first run's.
Runs = Literal["median", "same", "none"]


def field(doc: str, unit: str | None = None, *, runs: Runs | None = None) -> msgspec.Meta:
    """The meaning of a field and its unit, for `Annotated`; both stand in the JSON Schema.

    `runs` is for `documents.column.over_runs`; without it the type decides.
    """
    extra = {"column": {"runs": runs}} if runs else None
    return msgspec.Meta(description=doc, extra_json_schema={"unit": unit} if unit else None, extra=extra)


def known_keys(content: Any, kind: type[Document]) -> Any:
    """Version 1 to 2: version 1 had fewer keys at first, and others for a while.

    Keys that the present type lacks are left out, at any depth; missing ones are null or empty where they may be.
    """
    return _known(inspect.type_info(kind), content)


def _known(kind: inspect.Type, value: Any) -> Any:
    kind = _bare(kind)
    if isinstance(kind, inspect.UnionType):
        for one in map(_bare, kind.types):
            if isinstance(one, inspect.StructType | inspect.VarTupleType | inspect.DictType):
                return _known(one, value)
    if isinstance(kind, inspect.StructType) and isinstance(value, Mapping):
        lacking = {one.encode_name: _empty(one.type) for one in kind.fields if one.required and _may_be_empty(one.type)}
        known = {one.encode_name: one.type for one in kind.fields}
        return lacking | {name: _known(known[name], item) for name, item in value.items() if name in known}
    if isinstance(kind, inspect.VarTupleType) and isinstance(value, list):
        return [_known(kind.item_type, item) for item in value]
    if isinstance(kind, inspect.DictType) and isinstance(value, Mapping):
        return {name: _known(kind.value_type, item) for name, item in value.items()}
    return value


def _may_be_empty(kind: inspect.Type) -> bool:
    kind = _bare(kind)
    nullable = isinstance(kind, inspect.UnionType) and any(isinstance(one, inspect.NoneType) for one in kind.types)
    return nullable or isinstance(kind, inspect.VarTupleType | inspect.DictType | inspect.AnyType)


def _empty(kind: inspect.Type) -> Any:
    kind = _bare(kind)
    return [] if isinstance(kind, inspect.VarTupleType) else {} if isinstance(kind, inspect.DictType) else None


def _bare(kind: inspect.Type) -> inspect.Type:
    return kind.type if isinstance(kind, inspect.Metadata) else kind


class File(Document, frozen=True, kw_only=True):
    """A document that is a file of its own."""

    schema_version: Annotated[int, field("Version of this document; 1 where a file does not say it.")] = 2

    #: By version: what makes the content of a file of that version, and its type, into content of the next.
    migrations: ClassVar[Mapping[int, Callable[[Any, type[Document]], Any]]] = {1: known_keys}


class _Version(msgspec.Struct):
    """What is read of a file first."""

    schema_version: int = 1


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


def _of_version(content: Any, kind: type[_Document], version: int) -> _Document:
    if not issubclass(kind, File):
        return msgspec.convert({key: value for key, value in content.items() if key != VERSION_KEY}, kind)
    for older in range(version, version_of(kind)):
        content = kind.migrations[older](content, kind)
    return msgspec.convert({**content, VERSION_KEY: version_of(kind)}, kind)


def write(path: Path, document: Document) -> Path:
    """Write a document as indented JSON in one step, and return its path."""
    return write_json(path, {VERSION_KEY: version_of(type(document)), **msgspec.to_builtins(document)})


def read(
    path: Path, kind: type[_Document], *, next_step: str = "make it again: run the study, or steptrace analyze"
) -> _Document:
    """The document in a JSON file; `next_step` is what an error advises.

    Raises:
        RecordError: the file is missing, is no JSON, of a later version, or does not hold such a document.
    """
    try:
        content = path.read_bytes()
        version = msgspec.json.decode(content, type=_Version).schema_version
        check_version(version, path, version_of(kind))
        if issubclass(kind, File) and version == version_of(kind):
            return msgspec.json.decode(content, type=kind)
        return _of_version(msgspec.json.decode(content), kind, version)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise RecordError("file is missing", where=path, next_step=next_step) from error
    except (OSError, ValueError) as error:  # msgspec's errors, and text that is not UTF-8
        raise RecordError(
            f"file does not hold a {kind.__name__} ({error})",
            where=path,
            expected="a document of this version of steptrace (docs/schemas/)",
            next_step=next_step,
        ) from error
