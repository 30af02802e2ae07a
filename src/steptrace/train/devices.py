"""One timed training of a user at a time on each device of this machine.

A device is taken by an flock on a file in a folder that only this user can enter: in one that all users share, anybody
could keep every device taken for ever. The training's process inherits the open file, so the device stays taken for
exactly as long as the training lives, even if whatever started it is gone.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from steptrace.config.gpus import count_gpus, nvidia_gpus, visible_gpus
from steptrace.errors import TrainError
from steptrace.exchange import flocked, private_folder, user_folder
from steptrace.names import file_safe

_POLL_S = 0.5


@dataclass(frozen=True)
class Lease:
    """Devices that are ours while `descriptors` are open here or in a child; `environment` makes a child use them."""

    device: str
    descriptors: tuple[int, ...]
    environment: dict[str, str]

    def close(self) -> None:
        """Give up this process's share of the lease."""
        for descriptor in self.descriptors:
            os.close(descriptor)


def acquire(kind: str, *, waiting: Callable[[str], None], count: int = 1) -> Lease:
    """Take free devices of `kind` (`cpu`, `cuda`), waiting until there are enough.

    Args:
        kind: what the training runs on.
        waiting: called once a poll with the holders while too few are free; may raise to give up.
        count: how many GPUs the training needs. A CPU is taken as a whole by any number of processes.

    Raises:
        TrainError: there are not that many devices, whoever holds them.
    """
    candidates = _candidates(kind)
    needed = 1 if kind == "cpu" else count
    if len(candidates) < needed:
        raise TrainError(
            f"the training needs {needed} GPUs, and this process may use {len(candidates)}"
            if candidates
            else "there is no GPU that this process may use",
            expected=f"{needed} GPUs" if needed > 1 else "a GPU",
            next_step=f"lower distributed.world_size to {len(candidates)}, or use scale=cpu"
            if candidates
            else "use scale=cpu, or scale=auto",
        )
    while True:
        lease = _take(candidates, needed)
        if lease is not None:
            return lease
        waiting(", ".join(f"{name} (process {holder(_folder() / f'{name}.lock')})" for name in candidates))
        time.sleep(_POLL_S)


def _take(candidates: dict[str, dict[str, str]], needed: int) -> Lease | None:
    """Lock as many devices as needed, or none: two that each held a part would wait for each other for ever."""
    taken: dict[str, int] = {}
    for name in candidates:
        descriptor = try_lock(_folder() / f"{name}.lock")
        if descriptor is not None:
            taken[name] = descriptor
        if len(taken) == needed:
            visible = [candidates[name].get("CUDA_VISIBLE_DEVICES") for name in taken]
            ids = [index for index in visible if index is not None]
            environment = {"CUDA_VISIBLE_DEVICES": ",".join(ids)} if ids else {}
            return Lease("+".join(taken), tuple(taken.values()), environment)
    for descriptor in taken.values():
        os.close(descriptor)
    return None


def try_lock(path: Path) -> int | None:
    """Lock the file `path` and return its open descriptor, which a child can inherit; None if another holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        descriptor = flocked(_open_shared(path))
    except BlockingIOError:
        return None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def holders(kind: str) -> dict[str, str | None]:
    """The devices of `kind` that this process may use, and the process that trains on each now; None if free.

    Raises:
        OSError: locks cannot be made.
    """
    found: dict[str, str | None] = {}
    for name in _candidates(kind):
        path = _folder() / f"{name}.lock"
        descriptor = try_lock(path)
        found[name] = holder(path) if descriptor is None else None
        if descriptor is not None:
            os.close(descriptor)
    return found


def holder(path: Path) -> str:
    """Return the process id noted in a lock file, `?` if it cannot be read."""
    try:
        noted = path.read_bytes()[:20].strip()
        return noted.decode() if noted.isdigit() else "?"  # whoever wrote it, it is shown on a terminal
    except OSError:
        return "?"


def _candidates(kind: str) -> dict[str, dict[str, str]]:
    """Return device name -> environment for every device of `kind` this process may use."""
    if kind == "cpu":
        # Trainings that may not use each other's cores, as in two cluster jobs, do not disturb each other.
        cores = sha256(repr(sorted(_cores())).encode()).hexdigest()[:12]
        return {f"cpu-{cores}": {}}
    uuids = nvidia_gpus()
    ids = visible_gpus(uuids)
    if ids is None:  # an index names a part of a divided GPU to nobody: only its UUID does
        divided = any(uuid.startswith("MIG-") for uuid in uuids)
        ids = uuids if divided else [str(index) for index in range(count_gpus())]
    devices: dict[str, dict[str, str]] = {}
    for name in ids:
        # The same GPU has different indices in different containers; its UUID is the same in all. CUDA takes the
        # beginning of a UUID, too.
        full = [uuid for uuid in uuids if uuid.upper().startswith(name.upper())]
        physical = uuids[int(name)] if name.isdigit() and int(name) < len(uuids) else full[0] if full else name
        devices[f"gpu-{file_safe(physical.removeprefix('GPU-'))}"] = {"CUDA_VISIBLE_DEVICES": name}
    return devices


def _cores() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _folder() -> Path:
    named = os.environ.get("STEPTRACE_LOCKS")
    return private_folder(Path(named) if named else user_folder() / "locks")


def _open_shared(path: Path) -> int:
    """Open a file that other users may lock too, where a project's folder is shared; never through a link."""
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(path, flags)
    except FileNotFoundError:
        descriptor = os.open(path, flags | os.O_CREAT, 0o666)
        os.fchmod(descriptor, 0o666)
        return descriptor
