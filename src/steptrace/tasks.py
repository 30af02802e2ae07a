"""The tasks of the workflow's plan: the facts that a job needs to record how its results were made.

The plan writes them before the first job. A job reads its own, on another machine too, so that what it records is what
the call that started it had planned.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from steptrace.documents.base import decode
from steptrace.errors import RecordError
from steptrace.files import open_file, write_bytes

#: One task a line, as JSON.
TASKS_FILE: Final = Path("results", ".cache", "tasks.jsonl")


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One job of the plan.

    Attributes:
        name: its output without a suffix, or the folder that it fills, such as `results/giou/loop/run0`.
        key: digest of everything that its outputs depend on, except the files in `inputs`.
        outputs: files and folders that it makes, as its rule names them.
        inputs: files and folders that it reads.
        supervised: whether it is one child process that leaves a status.json in the folder `name`.
        parts: of a check of all variants of a study: the key of each variant.
        result: of a supervised one: the file that it leaves in its folder if it succeeds.
        needs: of a supervised one: the folders of the preparations that it needs.
        attempt: number of the next attempt, or of the last one if the task need not run.
    """

    name: str
    key: str
    outputs: tuple[str, ...]
    inputs: tuple[str, ...] = ()
    supervised: bool = False
    parts: dict[str, str] | None = None
    result: str = ""
    needs: tuple[str, ...] = ()
    attempt: int = 1


def write_tasks(tasks: Mapping[str, Task]) -> None:
    """Write the tasks for the jobs, one line for each task."""
    lines = [msgspec.json.encode(task) for task in tasks.values()]
    write_bytes(TASKS_FILE, b"\n".join([*lines, b""]))


def read_task(name: str) -> Task:
    """The task of a name.

    Raises:
        RecordError: there is no such task in the plan of the last call.
    """
    quoted = msgspec.json.encode(name)
    try:
        with open_file(TASKS_FILE) as file:
            lines = [line for line in file if line.startswith(b'{"name":' + quoted)]
        return decode(lines[0], Task)
    except (OSError, IndexError, ValueError) as error:
        raise RecordError(
            f"the plan has no task {name}", where=TASKS_FILE, next_step="let snakemake start this job"
        ) from error
