"""Devices of this machine, each for one training at a time: locks in a folder of the user, held while a child lives."""

import contextlib
import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from steptrace.config.gpus import visible_gpus
from steptrace.files import private_folder, user_folder


@dataclass(frozen=True)
class Lease:
    """Devices that are ours until `locks` is closed; `environment` makes a child use them."""

    locks: ExitStack
    environment: Mapping[str, str]
    problem: str = ""


def lock_folder() -> Path:
    """Where the locks of this machine's devices lie, one folder a user; `STEPTRACE_LOCKS` names another.

    Raises:
        SteptraceError: others may enter it.
    """
    named = os.environ.get("STEPTRACE_LOCKS")
    return private_folder(Path(named)) if named else user_folder()


def take_devices(gpus: int, *, cpu: bool = False) -> Lease | None:
    """So many GPUs, or the processor, if they are free now: all of them, or none."""
    names = ["cpu"] if cpu else visible_gpus()
    needed, taken, locks = 1 if cpu else gpus, list[str](), ExitStack()
    if needed > len(names):
        return Lease(locks, {}, f"the training needs {needed} GPUs, and there are {len(names)}: use scale=cpu")
    for name in names if needed else ():
        if len(taken) < needed:
            with contextlib.suppress(Timeout):
                locks.enter_context(FileLock(lock_folder() / f"{name}.lock", blocking=False))
                taken.append(name)
    if len(taken) == needed:
        return Lease(locks, {"CUDA_VISIBLE_DEVICES": ",".join(taken)} if gpus else {})
    locks.close()
    return None
