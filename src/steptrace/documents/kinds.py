"""Recognises the kind of a JSON file by its keys.

Only error messages use this: if a file is not of the expected kind, they say what it is and which command takes it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final

from steptrace.documents.base import Document

#: A file is of a kind, or of another version of it, if this share of the keys of both is common.
_ALIKE: Final = 0.6


@dataclass(frozen=True)
class FileKind:
    """A kind of file.

    Attributes:
        name: of the file, as steptrace writes it.
        holds: what it is, as a sentence goes on after its name.
        next_step: which command takes it.
        keys: the keys that its content must have.
        further: the keys that it may have, too.
        document: its type; None where it has none.
    """

    name: str
    holds: str
    next_step: str
    keys: frozenset[str]
    further: frozenset[str] = frozenset()
    document: type[Document] | None = None

    def likeness(self, keys: frozenset[str]) -> float:
        """How well the keys of some content fit: the share of keys that both have, 0 to 1."""
        known = self.keys | self.further
        return len(keys & known) / len((keys - known) | self.keys | (keys & known))


_DIFF: Final = "steptrace diff A B --out DIR compares two traces, or two folders that `steptrace run` wrote"
_COMPARE: Final = "steptrace compare BEFORE NOW compares results of a study"
_TRACE: Final = FileKind(
    "trace",
    "a trace of the PyTorch profiler",
    f"steptrace analyze TRACE says what is in it; {_DIFF}",
    frozenset({"traceEvents"}),
    frozenset({"schemaVersion", "deviceProperties", "displayTimeUnit", "baseTimeNanoseconds", "traceName"}),
)


@cache
def kinds() -> tuple[FileKind, ...]:
    """Every kind of file that steptrace writes as a JSON object, and a trace."""
    from steptrace.documents.comparison import ComparedResults, Comparison, Verdict
    from steptrace.documents.diff import Diff
    from steptrace.documents.equivalence import EquivalenceResult
    from steptrace.documents.prediction import PredictedStep
    from steptrace.documents.run import Communication, PlannedStudy, RunMemory, RunRecord, Status
    from steptrace.documents.snapshot import MemorySnapshots
    from steptrace.documents.summary import Summary

    a_run = "a run's folder is read as a whole"
    return (
        _TRACE,
        _kind(Summary, "summary.json", "what traces say", _DIFF),
        _kind(Comparison, "comparison.json", "the result of a study", _COMPARE),
        _kind(Diff, "diff.json", "two traces side by side", "open diff.html beside it"),
        _kind(
            ComparedResults, "compare.json", "several results of a study side by side", "open compare.html beside it"
        ),
        _kind(Verdict, "verdict.json", "the verdict of a workflow", "name the comparison.json of one of its studies"),
        _kind(RunRecord, "run.json", "the record of a run", _DIFF),
        _kind(Status, "status.json", "how a run ended", a_run),
        _kind(RunMemory, "memory.json", "the memory of a run", a_run),
        _kind(Communication, "communication.json", "what the ranks of a run tell each other", a_run),
        _kind(PlannedStudy, "study.json", "the plan of a study", "name the comparison.json beside it"),
        _kind(PredictedStep, "prediction.json", "a prediction", _DIFF),
        _kind(EquivalenceResult, "equivalence.json", "the result of an equivalence check", a_run),
        _kind(MemorySnapshots, "snapshot.json", "what memory snapshots say", "open report.html beside it"),
    )


def _kind(kind: type[Document], name: str, holds: str, next_step: str) -> FileKind:
    from msgspec.structs import fields

    required = {field.encode_name for field in fields(kind) if field.required}
    further = {field.encode_name for field in fields(kind)} - required
    return FileKind(name, holds, next_step, frozenset(required), frozenset(further), kind)


def kind_of(content: object) -> FileKind | None:
    """The kind of file that a JSON value comes from, whatever its version; None if it is of no known kind."""
    if not isinstance(content, Mapping):
        return None
    keys = frozenset(map(str, content)) - {"schema_version"}
    if _TRACE.keys <= keys:
        return _TRACE
    best = max(kinds(), key=lambda kind: kind.likeness(keys))
    return best if best.likeness(keys) >= _ALIKE else None


def name_of_file(document: type[Document]) -> str:
    """The name of the files that hold a kind of document, or the document's own."""
    return next((kind.name for kind in kinds() if kind.document is document), document.__name__)
