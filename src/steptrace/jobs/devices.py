"""Locks on devices, so that only one timed training at a time runs on each; the lock files lie in the user's folder."""

import contextlib
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from steptrace.files import user_folder
from steptrace.machine import gpu_ids, visible_gpus


@dataclass(frozen=True)
class Lease:
    """Devices that are locked until `locks` is closed.

    Attributes:
        locks: the locks.
        environment: variables that make a child process use these devices.
        problem: why the devices can never be locked, for a message; empty if they are locked.
    """

    locks: ExitStack
    environment: Mapping[str, str]
    problem: str = ""


def take_devices(gpus: int, *, cpu: bool = False) -> Lease | None:
    """A lease of so many GPUs, or of the processor; None as long as too few are free.

    The name of a GPU's lock is its UUID.
    """
    names = ["cpu"] if cpu else visible_gpus()
    locked_by = dict(zip(names, ["cpu"] if cpu else gpu_ids(names), strict=True))
    needed = 1 if cpu else gpus
    locks = ExitStack()
    if needed > len(names):
        return Lease(locks, {}, f"GPUs needed: {needed}, available: {len(names)}; use scale=cpu")
    taken: list[str] = []
    for name in names:
        if len(taken) < needed:
            with contextlib.suppress(Timeout):
                locks.enter_context(FileLock(_lock_file(locked_by[name]), blocking=False))
                taken.append(name)
    if len(taken) == needed:
        return Lease(locks, {"CUDA_VISIBLE_DEVICES": ",".join(taken)} if gpus else {})
    locks.close()
    return None


def _lock_file(device: str) -> Path:
    return user_folder() / f"{device.replace('/', '_')}.lock"  # the name of a MIG instance may have slashes
