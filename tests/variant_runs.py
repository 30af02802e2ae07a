"""Runs of variants, as the workflow makes them: a program with the probe in it, under the supervisor."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from steptrace.documents.run import Status
from steptrace.jobs.supervise import Job, supervise


def measure(config: Path, out: Path, repeat: int = 0) -> Status:
    """Train a variant by its resolved configuration, and write the files of its run into `out`."""
    with warnings.catch_warnings():
        # The child's death signal is set between fork and exec. A supervisor has one thread, pytest may have more.
        warnings.filterwarnings("ignore", ".*multi-threaded, use of fork", DeprecationWarning)
        ((_, status),) = supervise([Job(out, variant=config, repeat=repeat)])
    return status


def log_of(out: Path) -> str:
    """What a run has printed."""
    return (out / "train.log").read_text(encoding="utf-8", errors="replace")


def command_config(variant: str, command: Sequence[str], *, cwd: str = ".", predicted_steps: int = 9) -> dict[str, Any]:
    """The resolved configuration of a variant that is a program, as plain data."""
    return {
        "study": "s",
        "variant": variant,
        "digest": "0" * 64,
        "program": {"command": [*command], "env": {}, "cwd": cwd, "files": "", "packages": None},
        "seed": 0,
        "device": "cpu",
        "scale": {"name": "cpu", "warmup_steps": 2, "timed_steps": 4, "at_most_s": 20.0},
        "profile": {"warmup": 2, "active": 2},
        "followed": {"predicted_steps": predicted_steps, "compared_steps": 2},
        "distributed": {"world_size": 1},
    }
