"""Predictions of resolved configs, each in a process of its own (`steptrace.predict.main`).

The configs of a study of commands are those of `steptrace.launch.main`, which starts the program. This process does
not import torch, and the virtual device cannot be unregistered from one that does.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from steptrace.commands.output import say
from steptrace.documents.run import Status
from steptrace.errors import PredictError, SteptraceError
from steptrace.record import read_prediction
from steptrace.train.supervise import Job, supervise

#: What Python runs, by what is followed.
_PARTS: Final = {
    "config": ("steptrace.predict.main", "--config"),
    "command": ("steptrace.launch.main", "predict", "--config"),
}
_LOG: Final = "predict.log"
#: Each takes some hundred MB.
_AT_ONCE: Final = 4


@dataclass(frozen=True)
class Followed:
    """One program and its prediction; without one the error says why. `failed`: it ended by an error partway."""

    name: str
    prediction: dict[str, Any] | None
    error: SteptraceError | None = None
    failed: bool = False


def follow(kind: str, programs: Mapping[str, str], scratch: Path, options: Sequence[str]) -> list[Followed]:
    """Follow one program or several, each in a process of its own.

    Args:
        kind: `config` for a study of our own trainings, `command` for a study of commands.
        programs: the file of each one's resolved config, by name.
        scratch: a folder for predictions and logs.
        options: further arguments of `steptrace.predict.main`.
    """
    at_once = min(len(programs), os.cpu_count() or 1, _AT_ONCE)
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // at_once)))
    folders = {scratch / str(number): name for number, name in enumerate(programs)}
    commands = [
        [sys.executable, "-m", *_PARTS[kind], programs[name], *options, "--out", str(folder)]
        for folder, name in folders.items()
    ]
    jobs = [Job(folder, command, log=_LOG) for folder, command in zip(folders, commands, strict=True)]
    ended = {}
    for job, status in supervise(jobs, at_once=at_once):
        name = folders[job.out]
        ended[name] = _read(name, job.out, status, of_program=kind == "command")
        say(f"{len(ended)} of {len(jobs)} followed: {name}")
    return [ended[name] for name in programs]


def _read(name: str, folder: Path, status: Status, *, of_program: bool) -> Followed:
    """A prediction, or why there is none: what the process has printed."""
    if status.exit_code == 0:
        return Followed(name, read_prediction(folder))
    before, _, reason = (folder / _LOG).read_text(encoding="utf-8", errors="replace").rpartition("error: ")
    last = next((line for line in reversed(before.splitlines()) if line.strip()), None)
    # Of a program of the user's, whose output nobody else shows.
    output = "" if last is None or not of_program else f"\n  its last line: {last.strip()}"
    return Followed(name, None, PredictError((reason.strip() or str(status.error)) + output))
