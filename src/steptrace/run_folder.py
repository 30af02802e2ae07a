"""What one run leaves behind: run.json, steps.parquet, memory.json and status.json in
`results/<study>/<variant>/run<k>/`; where the study asks for it, sections.parquet and input.parquet, and where several
ranks trained, communication.json.

`status.json` is written by the supervisor whatever happens. It holds the key of what was run (configuration, code,
versions) and a mark of each file that the run left. A run counts only if its status is `ok`. The workflow takes it as
current only if the key is the plan's and the files are as they were written (`finished`); otherwise the next call runs
it again. `run.json` and `steps.parquet` are written by a training that got to its end.

Every file is replaced in one step (written beside its place, then renamed), so that a killed process leaves the old
file or the new one, never half of one. Readers check what they read and raise `RecordError` naming the file.
"""

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from steptrace.documents import base as documents
from steptrace.documents.base import Document
from steptrace.documents.equivalence import EquivalenceResult
from steptrace.documents.prediction import PredictedStep
from steptrace.documents.probe import WarnedSyncs
from steptrace.documents.run import (
    Check,
    Communication,
    FileMark,
    InputOfRun,
    OpLine,
    RunMemory,
    RunRecord,
    SectionOfRun,
    Status,
    StepOfRun,
)
from steptrace.documents.table import names_of, read_table, validate, write_table
from steptrace.errors import RecordError, SchemaError, SteptraceError
from steptrace.files import (
    VERSION_KEY,
    check_version,
    missing_file,
    open_file,
    read_bytes,
    replace_atomically,
    write_versioned,
)

if TYPE_CHECKING:
    import pandas as pd


STATUS_FILE: Final = "status.json"
RUN_FILE: Final = "run.json"
STEPS_FILE: Final = "steps.parquet"
OP_LINES_FILE: Final = "op_lines.parquet"
WARNED_SYNCS_FILE: Final = "warned_syncs.json"
COMMUNICATION_FILE: Final = "communication.json"
SOURCES_FILE: Final = "sources.json"
MEMORY_FILE: Final = "memory.json"
PREDICTION_FILE: Final = "prediction.json"
EQUIVALENCE_FILE: Final = "equivalence.json"
_SOURCES_VERSION: Final = 2
#: The exit code of a prediction of a step that cannot be followed.
_CANNOT_FOLLOW: Final = 2
#: The file that each successful check of a variant leaves, relative to the check's folder, which has the check's name.
CHECK_RESULTS: Final[Mapping[Check, str]] = {
    "equivalence": EQUIVALENCE_FILE,
    "prediction": f"../{PREDICTION_FILE}",
}

#: The file of each document, and of each kind of rows.
_FILES: Final[dict[type[Document], str]] = {
    Status: STATUS_FILE,
    RunRecord: RUN_FILE,
    RunMemory: MEMORY_FILE,
    Communication: COMMUNICATION_FILE,
    StepOfRun: STEPS_FILE,
    SectionOfRun: "sections.parquet",
    InputOfRun: "input.parquet",
    OpLine: OP_LINES_FILE,
    PredictedStep: PREDICTION_FILE,
    EquivalenceResult: EQUIVALENCE_FILE,
    WarnedSyncs: WARNED_SYNCS_FILE,
}

_AGAIN: Final = "run the study again: it makes damaged files again"


def write_document(run_dir: Path, document: Document) -> Path:
    """Write a document of a run into `run_dir` (made if missing) and return its path."""
    return documents.write(run_dir / _FILES[type(document)], document)


def read_communication(run_dir: Path) -> Communication | None:
    """Return the `communication.json` of `run_dir`, None without that file; `RecordError` if it is malformed."""
    path = run_dir / COMMUNICATION_FILE
    return documents.read(path, Communication, next_step=_AGAIN) if path.exists() else None


def read_status(run_dir: Path) -> Status:
    """Return the `status.json` of `run_dir`; `RecordError` if it is missing, malformed or of an unknown status."""
    return documents.read(run_dir / STATUS_FILE, Status, next_step=_AGAIN)


def mark(path: Path) -> FileMark:
    """The mark of a file as it is now.

    Raises:
        OSError: it cannot be read.
    """
    with open_file(path) as file:
        status = os.fstat(file.fileno())
        return FileMark(
            bytes=status.st_size,
            modified_ns=status.st_mtime_ns,
            sha256=hashlib.file_digest(file, "sha256").hexdigest(),
        )


def is_as_marked(path: Path, expected: FileMark) -> bool:
    """Whether a file is as it was when it was marked. Its content is read only if its time differs, as after a copy."""
    try:
        status = path.stat()
        if status.st_size != expected.bytes:
            return False
        return status.st_mtime_ns == expected.modified_ns or mark(path).sha256 == expected.sha256
    except OSError:
        return False


def marks_of(run_dir: Path, log: str, result: str) -> dict[str, FileMark]:
    """The marks of the files that a successful job left in its folder, except its log and status, and of its result.

    Args:
        run_dir: the job's folder.
        log: the name of its log.
        result: the name of its result, relative to the folder; it may lie outside.
    """
    paths = [path for path in sorted(run_dir.rglob("*")) if path.is_file() and not path.is_symlink()]
    kept = {path.relative_to(run_dir).as_posix(): path for path in paths if not path.name.startswith(".")}
    kept = {name: path for name, path in kept.items() if name not in (log, STATUS_FILE)}
    kept.setdefault(result, run_dir / result)
    return {name: mark(path) for name, path in kept.items()}


def damaged(run_dir: Path, status: Status, result: str) -> Path | None:
    """The first file of a job that has changed since, or its result if that is missing; None if all are whole."""
    if not (run_dir / result).exists():
        return run_dir / result
    return next((run_dir / name for name, file in status.files.items() if not is_as_marked(run_dir / name, file)), None)


def finished_check(variant_dir: Path, check: Check) -> Status | None:
    """The status of a variant's check that need not be tried again; None if it failed, or a file is missing or damaged.

    If a step cannot be followed, its prediction is not tried again, unless the variant's training failed as well.
    """
    status = _complete(variant_dir / check, CHECK_RESULTS[check])
    if status is None or status.status == "ok":
        return status
    cannot_follow = check == "prediction" and status.exit_code == _CANNOT_FOLLOW
    training = _complete(variant_dir / "run0", RUN_FILE) if cannot_follow else None
    return status if training is not None and training.status == "ok" else None


def _complete(folder: Path, result: str) -> Status | None:
    """The status of a job, unless it has none, or a file of a successful job is missing or damaged."""
    try:
        status = read_status(folder)
    except SteptraceError:  # none yet, damaged, or of another version
        return None
    return None if status.status == "ok" and damaged(folder, status, result) is not None else status


def read_run(run_dir: Path) -> RunRecord:
    """Return the `run.json` of `run_dir`; `RecordError` if it is missing or malformed."""
    return documents.read(run_dir / RUN_FILE, RunRecord, next_step=_AGAIN)


def read_steps(run_dir: Path) -> "pd.DataFrame":
    """Return the `steps.parquet` of `run_dir` as a `StepOfRun` table; `RecordError` if missing or malformed."""
    if (steps := read_rows(run_dir, StepOfRun)) is None:
        raise missing_file(run_dir / STEPS_FILE)
    return steps


def write_rows(run_dir: Path, kind: type[Document], rows: "pd.DataFrame") -> Path:
    """Write a table of a run into `run_dir` and return its path."""
    path = run_dir / _FILES[kind]
    rows = validate(rows, kind)
    replace_atomically(path, lambda temporary: write_table(rows, temporary))
    return path


def read_rows(run_dir: Path, kind: type[Document]) -> "pd.DataFrame | None":
    """Return a table of the run in `run_dir`, None if the run has none; `RecordError` if it is malformed."""
    path = run_dir / _FILES[kind]
    try:
        return validate(read_table(path), kind) if path.exists() else None
    except (OSError, ValueError, SchemaError) as error:  # pyarrow's ArrowInvalid is a ValueError
        expected = f"a table of {kind.__name__}: {', '.join(names_of(kind))}"
        raise RecordError(f"file is not such a table ({error})", where=path, expected=expected) from error


def write_op_lines(run_dir: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write `op_lines.parquet` (table `OpLine`, one row an operator) into `run_dir` and return its path."""
    import pandas as pd

    frame = pd.DataFrame(list(rows), columns=names_of(OpLine)).astype({"line": "Int64", "program_line": "Int64"})
    return write_rows(run_dir, OpLine, frame)


def write_sources(run_dir: Path, texts: Mapping[str, str]) -> Path:
    """Write `sources.json`, the text of each file as it was in the run, into `run_dir` and return its path."""
    return write_versioned(run_dir / SOURCES_FILE, {"files": texts}, _SOURCES_VERSION)


def read_sources(path: Path) -> dict[str, str]:
    """Return the texts in a `sources.json` by file.

    Raises:
        RecordError: it is of another version.
        ValueError: it is malformed.
    """
    content = documents.decode(read_bytes(path), dict[str, Any])
    check_version(content.get(VERSION_KEY), path, _SOURCES_VERSION)
    return msgspec.convert(content.get("files"), dict[str, str])


def read_prediction(variant_dir: Path) -> PredictedStep:
    """Return the `prediction.json` of `variant_dir`.

    Raises:
        RecordError: it is missing, malformed or of another version.
    """
    return documents.read(variant_dir / PREDICTION_FILE, PredictedStep)


def read_equivalence(folder: Path) -> EquivalenceResult:
    """Return the `equivalence.json` of a check's folder; `RecordError` if it is missing or malformed."""
    return documents.read(folder / EQUIVALENCE_FILE, EquivalenceResult)


def read_warned_syncs(run_dir: Path) -> WarnedSyncs | None:
    """Return the `warned_syncs.json` of `run_dir`, None without that file; `RecordError` if it is malformed."""
    path = run_dir / WARNED_SYNCS_FILE
    return documents.read(path, WarnedSyncs) if path.exists() else None


def read_memory(run_dir: Path) -> RunMemory | None:
    """Return the `memory.json` of `run_dir`, None without that file; `RecordError` if it is malformed."""
    path = run_dir / MEMORY_FILE
    return documents.read(path, RunMemory) if path.exists() else None
