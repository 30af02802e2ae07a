"""Decides whether each result of the workflow is up to date: complete, and made from what the plan would use now.

The records lie beside the results. A run's status.json, or the record of another task, holds a key (digest of
configuration, code, versions), a mark of each file, and the number of the attempt. The plan compares these with its
own. Snakemake's records in `.snakemake/` are not relied on: they may be missing, or belong to other results.

Nothing here writes, except `write_record`. A task that has to run again gets a new attempt number, which is one of its
rule's params.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from steptrace.documents.base import File, field, read, write
from steptrace.documents.run import Check, FileMark, Status
from steptrace.errors import RecordError, SteptraceError
from steptrace.files import read_bytes
from steptrace.run_folder import CHECK_RESULTS, STATUS_FILE, damaged, finished_check, is_as_marked, mark, read_status
from steptrace.tasks import Task

_RECORDS: Final = Path("results", ".cache", "made")

#: Why a task runs again. `new`: it has no record.
Reason = Literal["new", "failed", "changed", "damaged"]


class Made(File, frozen=True, kw_only=True):
    """The record of a task that has written its outputs."""

    key: Annotated[str, field("Digest of everything that the task depends on, except its input files.")]
    attempt: Annotated[int, field("Number of the attempt.")]
    inputs: Annotated[dict[str, FileMark], field("The files that the task has read.")]
    outputs: Annotated[dict[str, FileMark], field("The files that the task has written.")]


class State(msgspec.Struct, frozen=True):
    """Whether a task has to run.

    Attributes:
        attempt: number of the attempt that its outputs are from, or of the next one if it has to run.
        reason: why it has to run; None if it is up to date.
        file: the damaged file, if the reason is `damaged`.
    """

    attempt: int
    reason: Reason | None = None
    file: Path | None = None


def record_file(task: Task) -> Path:
    """The path of a task's record."""
    if task.supervised:
        return Path(task.name, STATUS_FILE)
    return Path(task.outputs[0]) if task.parts is not None else _RECORDS / f"{task.name}.json"


def state_of(task: Task) -> State:
    """Whether a task has to run, from its record and its files."""
    file = record_file(task)
    record: Status | Made
    try:
        record = read_status(Path(task.name)) if task.supervised else read(file, Made)
    except RecordError:
        try:
            content = read_bytes(file)
        except OSError:
            return State(1, "new")
        # The last attempt's number is lost; the digest of the damaged record is a number that no attempt had.
        return State(int(hashlib.sha256(content).hexdigest()[:8], 16), "damaged", file)
    again = record.attempt + 1
    if isinstance(record, Status):
        if record.status != "ok":
            return State(again, "failed")
        if record.key != task.key:
            return State(again, "changed")
        broken = damaged(Path(task.name), record, task.result)
        return State(again, "damaged", broken) if broken else State(record.attempt)
    if record.key != task.key:
        return State(again, "changed")
    if task.parts is not None:
        return _state_of_parts(task, record)
    if any(not is_as_marked(Path(name), expected) for name, expected in record.inputs.items()):
        return State(again, "changed")
    missing = {*task.outputs} - {
        *record.outputs,
        *(f"{parent}" for name in record.outputs for parent in Path(name).parents),
    }
    empty = next((Path(name) for name in sorted(missing) if not Path(name).is_dir()), None)
    broken = empty or next(
        (Path(n) for n, expected in record.outputs.items() if not is_as_marked(Path(n), expected)), None
    )
    return State(again, "damaged", broken) if broken else State(record.attempt)


def _state_of_parts(task: Task, record: Made) -> State:
    """The state of a task that checks every variant, from the status of each variant's check."""
    again = record.attempt + 1
    study = Path(task.name).parent
    check = msgspec.convert(Path(task.name).name, Check)
    for variant, key in (task.parts or {}).items():
        status = finished_check(study / variant, check)
        if status is None:
            return State(again, *_why_not(study / variant / check, CHECK_RESULTS[check]))
        if status.key != key:
            return State(again, "changed")
    return State(record.attempt)


def _why_not(folder: Path, result: str) -> tuple[Reason, Path | None]:
    """Why a check does not count as finished, by its folder and the file that it leaves there."""
    try:
        status = read_status(folder)
    except SteptraceError:
        return "damaged", folder / STATUS_FILE
    return ("damaged", damaged(folder, status, result)) if status.status == "ok" else ("failed", None)


def marks(paths: Iterable[str]) -> dict[str, FileMark]:
    """The mark of each file, and of each file in each folder."""
    files: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            files += sorted(file for file in path.rglob("*") if file.is_file())
        elif path.is_file():  # pipes are skipped
            files.append(path)
    return {str(file): mark(file) for file in files}


def write_record(task: Task) -> None:
    """Write the record of a task that has just written its outputs."""
    inputs = marks(task.inputs)
    outputs = {} if task.parts is not None else marks(task.outputs)
    write(record_file(task), Made(key=task.key, attempt=task.attempt, inputs=inputs, outputs=outputs))
