"""Locks on this machine's devices, each for one training at a time, in a folder of the user."""

import contextlib
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass

from filelock import FileLock, Timeout

from steptrace.config.gpus import visible_gpus
from steptrace.files import user_folder


@dataclass(frozen=True)
class Lease:
    """Devices locked until `locks` is closed; `environment` makes a child process use them."""

    locks: ExitStack
    environment: Mapping[str, str]
    problem: str = ""


def take_devices(gpus: int, *, cpu: bool = False) -> Lease | None:
    """Lock that many GPUs, or the processor, if free: all or none."""
    names = ["cpu"] if cpu else visible_gpus()
    needed, taken, locks = 1 if cpu else gpus, list[str](), ExitStack()
    if needed > len(names):
        return Lease(locks, {}, f"GPUs needed: {needed}, available: {len(names)}; use scale=cpu")
    for name in names if needed else ():
        if len(taken) < needed:
            with contextlib.suppress(Timeout):
                locks.enter_context(FileLock(user_folder() / f"{name}.lock", blocking=False))
                taken.append(name)
    if len(taken) == needed:
        return Lease(locks, {"CUDA_VISIBLE_DEVICES": ",".join(taken)} if gpus else {})
    locks.close()
    return None
