"""Predictions of resolved configs and functions, each in a process of its own (`steptrace.predict.main`).

Its virtual device asks for that, and this process does not import torch. Those of a study are forks of one process.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from steptrace.commands.output import progress
from steptrace.errors import PredictError, SteptraceError
from steptrace.files import read_versioned
from steptrace.train.lifetime import die_with

_FILE: Final = "prediction.json"
_LOG: Final = "predict.log"


@dataclass(frozen=True)
class Followed:
    """One program and its prediction; without one the error says why. `failed`: it ended by an error partway."""

    name: str
    prediction: dict[str, Any] | None
    error: SteptraceError | None = None
    failed: bool = False


def follow(kind: str, programs: Mapping[str, str], scratch: Path, options: Sequence[str]) -> list[Followed]:
    """Follow one program, or a study's variants in forks of one process.

    Args:
        kind: what the programs are: `config` for files of resolved configs, `callable` for a `module:function`.
        programs: by name.
        scratch: a folder for what is left meanwhile.
        options: more of the arguments of `steptrace.predict.main`.
    """
    if len(programs) > 1 and sys.platform != "linux":  # elsewhere what has imported PyTorch is better not forked
        return [found for program in programs.items() for found in follow(kind, dict([program]), scratch, options)]
    what = [f"--{kind}", *programs.values(), *options]
    command = [sys.executable, "-m", "steptrace.predict.main", *what, "--out", str(scratch)]
    ends_with_this = partial(die_with, os.getpid(), signal.SIGTERM)
    # Several at once must not want all cores each.
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    codes: dict[str, int] = {}
    with (
        progress() as status,
        (scratch / _LOG).open("w") as log,
        subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True, preexec_fn=ends_with_this
        ) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            code, _, name = line.strip().partition(" ")
            if len(programs) > 1 and name in programs:
                codes[name] = int(code)
                status.say(f"{len(codes)} of {len(programs)} followed; last: {name}")
    return [
        _read(name, scratch / name, codes[name]) if name in codes else _read(name, scratch, process.returncode)
        for name in programs
    ]


def _read(name: str, folder: Path, code: int) -> Followed:
    """A prediction, or why there is none: what the process that ended with this code has said."""
    if code == 0:
        return Followed(name, read_versioned(folder / _FILE))
    said = (folder / _LOG).read_text(encoding="utf-8", errors="replace")
    return Followed(name, None, PredictError(said.rpartition("error: ")[2].strip() or f"the process ended with {code}"))
