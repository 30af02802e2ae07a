"""The rule of versions: a file that says a document's present version can be read, whenever it was written.

So a field that is added has a default, or the document's version goes up; a field that goes, or that takes fewer values
than before, needs the next version, too. `docs/schemas/versions.json` holds the shape of each document at its version,
by which `problems` finds what broke the rule. It is kept by `python -m steptrace.document_schemas docs`.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from steptrace.documents import table
from steptrace.documents.base import Document, version_of
from steptrace.documents.command_answers import ANSWERS_BY_KIND
from steptrace.documents.kinds import kinds
from steptrace.documents.run import InputOfRun, OpLine, SectionOfRun, StepOfRun
from steptrace.files import VERSION_KEY

#: Keys of a JSON Schema that do not decide which values fit.
_WORDS: Final = ("description", "title", "default")
#: The tables that are read from the files of earlier runs.
_TABLES: Final[tuple[type[Document], ...]] = (StepOfRun, SectionOfRun, InputOfRun, OpLine)

#: A version, and by type its `fields`, each with the schema of its values as JSON, and which of these are `required`.
Shape = dict[str, Any]


def shapes() -> dict[str, Shape]:
    """The present version and shape of every file, by its name, of what commands print, and of the tables of runs."""
    documents = {kind.name: shape_of(kind.document) for kind in kinds() if kind.document is not None}
    of_tables: dict[str, Any] = {}
    for row in _TABLES:
        for name, shape in shape_of(row)["types"].items():
            # A table has the columns that are declared, and no others.
            of_tables[name] = {**shape, "required": sorted(shape["fields"])}
    answers = {f"answer {kind}": shape_of(answer) for kind, answer in ANSWERS_BY_KIND.items()}
    return {**documents, **answers, "tables": {"version": table.VERSION, "types": of_tables}}


def shape_of(document: type[Document]) -> Shape:
    """The version of a document, and the fields of it and of all that it holds."""
    types = {}
    for name, schema in msgspec.json.schema(document)["$defs"].items():
        if "properties" in schema:
            fields = {key: _text(_bare(value)) for key, value in schema["properties"].items() if key != VERSION_KEY}
            types[name] = {"required": sorted(schema.get("required", ())), "fields": fields}
    return {"version": version_of(document), "types": types}


def _bare(schema: Any) -> Any:
    """A schema without its words."""
    if isinstance(schema, list):
        return [_bare(item) for item in schema]
    if isinstance(schema, dict):
        return {key: _bare(value) for key, value in schema.items() if key not in _WORDS}
    return schema


def problems(before: Mapping[str, Shape], now: Mapping[str, Shape]) -> list[str]:
    """The changes that keep earlier files of the same version from being read; a sentence each.

    Args:
        before: the shapes as versions.json has them.
        now: the present ones.
    """
    problems_found = []
    for name, shape in now.items():
        earlier = before.get(name)
        if earlier is None or earlier["version"] < shape["version"]:
            continue
        if earlier["version"] > shape["version"]:
            problems_found.append(f"{name}: the version went back to {shape['version']} from {earlier['version']}")
        else:
            problems_found += [f"{name}: {problem}" for problem in _unreadable(earlier["types"], shape["types"])]
    return problems_found


def _unreadable(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for name, new in now.items():
        old = before.get(name)
        if old is None:  # the field that leads to it says whether that fits
            continue
        for field in sorted({*new["required"]} - {*old["required"]}):
            yield f"{name}.{field} is required, and files lack it that were written before"
        for field in sorted({*old["fields"]} - {*new["fields"]}):
            yield f"{name}.{field} is gone, and files that have it are refused"
        for field in sorted({*old["fields"]} & {*new["fields"]}):
            if not _takes(json.loads(new["fields"][field]), json.loads(old["fields"][field])):
                yield f"{name}.{field} no longer takes all values that it took"


def _takes(new: Any, old: Any) -> bool:
    """Whether every value that fits the old schema fits the new one, as far as their alternatives show."""
    choices = [*_choices(new)]
    texts = {_text(choice) for choice in choices}
    return all(
        any(_text(wider) in texts for wider in _wider(choice))
        or any(_takes_inside(schema, choice) for schema in choices)
        for choice in _choices(old)
    )


def _takes_inside(new: Mapping[str, Any], old: Mapping[str, Any]) -> bool:
    """Whether a map, or a list, takes all that another takes because its values, or its items, do."""
    for inner in ("additionalProperties", "items"):
        if isinstance(new.get(inner), dict) and isinstance(old.get(inner), dict):
            around = [{key: value for key, value in schema.items() if key != inner} for schema in (new, old)]
            return around[0] == around[1] and _takes(new[inner], old[inner])
    return False


def _choices(schema: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The alternatives of a schema; each value of an enumeration is one."""
    for alternative in schema.get("anyOf", [schema]):
        values = alternative.get("enum")
        if values is None:
            yield alternative
            continue
        for value in values:
            yield {"type": "null"} if value is None else {"enum": [value]}


def _wider(choice: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The alternative, and those that take all of its values and more."""
    yield choice
    yield {}
    if "enum" in choice:
        yield {"type": "string" if isinstance(choice["enum"][0], str) else "integer"}
    if choice.get("type") == "integer":
        yield {"type": "number"}


def _text(schema: Any) -> str:
    return json.dumps(schema, sort_keys=True)


def kept(before: Mapping[str, Shape], now: Mapping[str, Shape]) -> dict[str, Shape]:
    """The new content of versions.json: a document of the same version gains its new fields, others get the new shape.

    A field that was optional once at a version stays so there: files without it are around.
    """
    return {name: _kept(before.get(name), shape) for name, shape in now.items()}


def _kept(before: Shape | None, now: Shape) -> Shape:
    if before is None or before["version"] != now["version"]:
        return now
    types = {}
    for name, shape in now["types"].items():
        old = before["types"].get(name, shape)
        types[name] = {"required": old["required"], "fields": shape["fields"]}
    return {"version": now["version"], "types": types}
