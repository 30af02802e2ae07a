"""Makes the parts of the docs that follow from the types of the documents.

`python -m steptrace.document_schemas docs` writes them.

The JSON Schemas in `schemas/`: of documents and of what commands print, from the structs in `documents`, and of the
files that a person writes, from those in `config`. `schemas/versions.json` (`documents.versions`). In `metrics.md` the
table of what a trace's page says, in `findings.md` that of the rules, in `config/README.md` that of a configuration's
keys.
"""

import inspect
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, cast

import msgspec
from msgspec import Meta

from steptrace.config.schema import MOST, RootConfig
from steptrace.config.settings import Limits, WorkflowSettings
from steptrace.config.study_file import StudyFile
from steptrace.documents.base import Document, columns_of, meaning_of
from steptrace.documents.command_answers import (
    AnalyzeAnswer,
    CapturableProcess,
    CaptureAllAnswer,
    CaptureAnswer,
    DiffAnswer,
    DoctorAnswer,
    InitAnswer,
    PredictAnswer,
    PredictStudyAnswer,
    RunAnswer,
)
from steptrace.documents.comparison import ComparedResults, Comparison, Verdict
from steptrace.documents.diff import Diff
from steptrace.documents.equivalence import EquivalenceResult
from steptrace.documents.prediction import PredictedStep
from steptrace.documents.run import RunMemory, RunRecord, Status
from steptrace.documents.snapshot import MemorySnapshots
from steptrace.documents.steps import StepFigures
from steptrace.documents.subject import subjects_of
from steptrace.documents.summary import Summary, TraceSummary
from steptrace.documents.versions import kept, problems, shapes
from steptrace.errors import ConfigError
from steptrace.files import read_json
from steptrace.findings import RULES, AnyRule
from steptrace.format import plain
from steptrace.markdown import table

#: Each document by the name of its file.
DOCUMENTS: Final[dict[str, Any]] = {
    "summary": Summary,
    "comparison": Comparison,
    "diff": Diff,
    "compare": ComparedResults,
    "verdict": Verdict,
    "run": RunRecord,
    "status": Status,
    "memory": RunMemory,
    "prediction": PredictedStep,
    "equivalence": EquivalenceResult,
    "snapshot": MemorySnapshots,
}


#: What each command prints with `--json`: any of these.
ANSWERS: Final[dict[str, tuple[Any, ...]]] = {
    "analyze": (AnalyzeAnswer,),
    "capture": (CaptureAnswer, CaptureAllAnswer, list[CapturableProcess]),
    "compare": (ComparedResults,),
    "diff": (DiffAnswer,),
    "doctor": (DoctorAnswer,),
    "init": (InitAnswer,),
    "predict": (PredictAnswer, PredictStudyAnswer),
    "run": (RunAnswer,),
}


def schema_of(name: str) -> dict[str, Any]:
    """The JSON Schema of a document, by the name of its file without the ending."""
    return _schema([DOCUMENTS[name]])


def answer_schema_of(command: str) -> dict[str, Any]:
    """The JSON Schema of what a command prints with `--json`."""
    return _schema(ANSWERS[command])


def _schema(kinds: Sequence[Any]) -> dict[str, Any]:
    """The JSON Schema of a value that has one of these types."""
    schemas, parts = msgspec.json.schema_components(kinds, ref_template="#/$defs/{name}")
    for part in parts.values():
        if "description" in part:
            part["description"] = inspect.cleandoc(part["description"])  # Python up to 3.12 keeps a docstring's indent
    whole = schemas[0] if len(schemas) == 1 else {"anyOf": list(schemas)}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **whole, "$defs": parts}


class WorkflowFile(WorkflowSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """config/workflow.yaml: what runs, and what must hold. Every key can also be given by `snakemake --config`."""

    studies: Annotated[list[str], Meta(description="studies to run, by their files' names; default: all")] = (
        msgspec.field(default_factory=list)
    )
    gates: Annotated[
        dict[str, dict[str, dict[str, Limits]]],
        Meta(description='study, then variant or "*", then a key of the variant in comparison.json, then limits'),
    ] = msgspec.field(default_factory=dict)


#: Each file that a person writes, by its name.
SETTINGS: Final[dict[str, Any]] = {"workflow": WorkflowFile, "study": StudyFile}


def settings_schema_of(name: str) -> dict[str, Any]:
    """The JSON Schema of a file of settings, for editors and for validation without steptrace."""
    schema = msgspec.json.schema(SETTINGS[name])
    for described in schema["$defs"].values():
        if "description" in described:
            described["description"] = inspect.cleandoc(described["description"])
    text = json.dumps(schema).replace(r"\\Z", "$")  # the end of a text, as JSON Schema's expressions have it
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **json.loads(text)}


def subject_table() -> str:
    """What a trace's page says, a row a subject, for docs/metrics.md."""
    rows = [("Figures of a step", "–", *_described(StepFigures))]
    rows += [(subject.heading, f"`{subject.name}`", *_described(subject.kind)) for subject in subjects_of(TraceSummary)]
    return table(("Subject", "Key", "What it is", "Figures"), rows)


def _described(kind: type[Document]) -> tuple[str, str]:
    """What a row is, and its columns: those that tell rows apart first."""
    columns = [c for c in columns_of(kind) if c.dtype]
    named = [f"`{c.name}`" + (f" ({c.unit})" if c.unit else "") for c in columns if not c.is_key]
    keys = [f"`{c.name}`" for c in columns if c.is_key]
    return meaning_of(kind), "; ".join([*([f"by {', '.join(keys)}"] if keys else []), *named])


def rule_table() -> str:
    """The rules of findings as a table for docs/findings.md."""
    head = ("Rule", "Looks at", "Fires when", "Source of the thresholds", "Advice", "Counter-check", "Study")
    return table(head, [_row(rule) for rule in RULES.values()])


def _row(rule: AnyRule) -> tuple[str, ...]:
    study = f"`{rule.study}`" if rule.study else "–"
    looks_at = ", ".join(rule.looks_at)
    return f"`{rule.name}`", looks_at, rule.condition_text, rule.basis, " ".join(rule.advice), rule.counter_check, study


def figure_table() -> str:
    """The figures of each rule's findings as a table for docs/findings.md."""
    rows = []
    for rule in RULES.values():
        name = f"`{rule.name}`"
        for column in columns_of(cast("type[Document]", rule.figures)):
            rows.append((name, f"`{column.name}`", column.unit or "", column.meaning))
            name = ""
    return table(("Rule", "Figure", "Unit", "What it is"), rows)


def key_table() -> str:
    """The keys of a configuration, for config/README.md."""
    rows = []
    for name, kind in keys():
        default = kind.get("default")
        cell = f"`{default if isinstance(default, str) else json.dumps(default)}`" if "default" in kind else ""
        rows.append((f"`{name}`", " or ".join(map(_takes, kind.get("anyOf", [kind]))), cell, kind["description"]))
    return table(("key", "takes", "default", "meaning"), rows)


def keys() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every key of a configuration that is no section, dotted, with what JSON Schema says of it."""
    sections = msgspec.json.schema(RootConfig)["$defs"]

    def below(section: str, prefix: str) -> Iterator[tuple[str, dict[str, Any]]]:
        for name, kind in sections[section]["properties"].items():
            reference = kind.get("$ref") or kind.get("allOf", [{}])[0].get("$ref")
            if reference is None:
                yield f"{prefix}{name}", kind
            else:
                yield from below(reference.rpartition("/")[2], f"{prefix}{name}.")

    yield from below("RootConfig", "")


def _takes(kind: dict[str, Any]) -> str:
    """What a key accepts in words, such as `integer of at least 1`."""
    if "enum" in kind:
        return " or ".join(value or "null" for value in kind["enum"])
    text = str(kind["type"])
    for limit, words in (("minimum", "of at least"), ("exclusiveMinimum", "above"), ("maximum", "and at most")):
        if kind.get(limit) not in (None, MOST):
            text += f" {words} {plain(kind[limit])}"
    return text


#: By page and place what is made: from the comment `<!-- PLACE: made by ... -->` to the next `<!-- end -->`.
TABLES: Final[dict[tuple[str, str], Callable[[], str]]] = {
    ("metrics.md", "subjects of a trace"): subject_table,
    ("findings.md", "rules"): rule_table,
    ("findings.md", "figures"): figure_table,
    ("../config/README.md", "keys"): key_table,
}


def with_table(text: str, place: str, content: str) -> str:
    """The text of a page with what stands at one place made anew."""
    before, begin, rest = text.partition(f"<!-- {place}: made by steptrace.document_schemas -->\n")
    _, end, after = rest.partition("<!-- end -->")
    return before + begin + content + end + after


#: The shape of each document at its version.
VERSIONS_FILE: Final = "versions.json"
#: The folder of the schemas of what commands print.
COMMANDS_FOLDER: Final = "commands"


def write(docs: Path) -> None:
    """Write every schema, the shapes of documents by version, and the tables.

    Raises:
        ConfigError: a document has changed so that files of its version no longer fit, or Python dropped the
            docstrings, from which descriptions are made (`-OO`); nothing is written.
    """
    if write.__doc__ is None:
        raise ConfigError("without docstrings the schemas would lose descriptions", next_step="run Python without -OO")
    folder = docs / "schemas"
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / VERSIONS_FILE
    now = shapes()
    before = read_json(file) if file.exists() else {}
    if broken := problems(before, now):
        raise ConfigError(
            "files that were written at a document's present version can no longer be read: " + "; ".join(broken),
            where=file,
            next_step="give the new field a default, or the document the next `schema_version`",
        )
    file.write_text(json.dumps(kept(before, now), indent=1, sort_keys=True) + "\n", encoding="utf-8")
    for name in DOCUMENTS:
        (folder / f"{name}.schema.json").write_text(json.dumps(schema_of(name), indent=1) + "\n", encoding="utf-8")
    commands = folder / COMMANDS_FOLDER
    commands.mkdir(exist_ok=True)
    for name in ANSWERS:
        text = json.dumps(answer_schema_of(name), indent=1)
        (commands / f"{name}.schema.json").write_text(text + "\n", encoding="utf-8")
    for name in SETTINGS:
        text = json.dumps(settings_schema_of(name), indent=1)
        (folder / f"{name}.schema.json").write_text(text + "\n", encoding="utf-8")
    for (name, place), make in TABLES.items():
        page = docs / name
        page.write_text(with_table(page.read_text(encoding="utf-8"), place, make()), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
