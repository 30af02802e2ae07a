"""Predictions of resolved configs and functions, each in a process of its own (`steptrace.predict.main`).

The configs of a study of commands are those of `steptrace.launch.main`, which starts the program.

Its virtual device asks for that, and this process does not import torch.
"""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from steptrace.commands.output import progress
from steptrace.errors import PredictError, SteptraceError
from steptrace.files import read_versioned
from steptrace.processes import die_with

#: What Python runs, by what is followed.
_PARTS: Final = {
    "config": ("steptrace.predict.main", "--config"),
    "callable": ("steptrace.predict.main", "--callable"),
    "command": ("steptrace.launch.main", "predict", "--config"),
}
_FILE: Final = "prediction.json"
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
        kind: what the programs are: `config` for files of resolved configs, `command` for those of a study of commands,
            `callable` for a `module:function`.
        programs: by name.
        scratch: a folder for what is left meanwhile.
        options: more of the arguments of `steptrace.predict.main`.
    """
    at_once = min(len(programs), os.cpu_count() or 1, _AT_ONCE)
    with progress() as status, ThreadPoolExecutor(at_once) as pool:
        futures = {
            pool.submit(_follow_one, name, [*_PARTS[kind], program, *options], scratch / str(number), at_once): name
            for number, (name, program) in enumerate(programs.items())
        }
        for count, future in enumerate(as_completed(futures), start=1):
            status.say(f"{count} of {len(programs)} followed; last: {futures[future]}")
        return [future.result() for future in futures]


def _follow_one(name: str, what: Sequence[str], folder: Path, at_once: int) -> Followed:
    folder.mkdir()
    environment = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // at_once)), **os.environ}
    command = [sys.executable, "-m", *what, "--out", str(folder)]
    with (folder / _LOG).open("w") as log:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            preexec_fn=partial(die_with, os.getpid()),
            check=False,
        )
    return _read(name, folder, done.returncode, of_program=what[0] == _PARTS["command"][0])


def _read(name: str, folder: Path, code: int, *, of_program: bool) -> Followed:
    """A prediction, or why there is none: what the process that ended with this code has said."""
    if code == 0:
        return Followed(name, read_versioned(folder / _FILE))
    before, _, reason = (folder / _LOG).read_text(encoding="utf-8", errors="replace").rpartition("error: ")
    last = next((line for line in reversed(before.splitlines()) if line.strip()), None)
    # Of a program of the user's, whose output nobody else shows.
    output = "" if last is None or not of_program else f"\n  its last line: {last.strip()}"
    return Followed(name, None, PredictError((reason.strip() or f"the process ended with {code}") + output))
