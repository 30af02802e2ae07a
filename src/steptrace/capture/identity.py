"""Which process this is: its rank in which job, and since when it runs."""

import os
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil


@dataclass(frozen=True)
class Place:
    """A process's place in its job. None where the process is not part of a distributed job, or not yet."""

    rank: int | None
    world_size: int | None
    local_rank: int | None
    job: str | None


def host() -> str:
    """This machine's name."""
    return socket.gethostname()


def place() -> Place:
    """This process's rank, as torch.distributed says it, or else the launcher's environment.

    `job` is equal for the ranks of one job: the meeting point that the launcher has named, or the Slurm step, or, for
    ranks started by one parent, that parent. It needs more than one rank: such variables may be left over in a shell.
    """
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        rank: int | None = int(distributed.get_rank())
        world_size: int | None = int(distributed.get_world_size())
    else:
        rank, world_size = _number("RANK"), _number("WORLD_SIZE")
    if rank is None or world_size is None:
        return Place(None, None, None, None)
    return Place(rank, world_size, _number("LOCAL_RANK"), _job() if world_size > 1 else None)


def _job() -> str:
    env = os.environ
    if "MASTER_ADDR" in env and "MASTER_PORT" in env:
        address = env["MASTER_ADDR"]
        if address in ("localhost", "::1") or address.startswith("127."):  # each machine's own
            address = f"{host()}/{address}"
        return f"{address}:{env['MASTER_PORT']}:{env.get('TORCHELASTIC_RUN_ID', '')}"
    if "SLURM_JOB_ID" in env and "SLURM_STEP_ID" in env:
        return f"slurm:{env['SLURM_JOB_ID']}.{env['SLURM_STEP_ID']}"
    return f"{host()}:{os.getppid()}"


def _number(variable: str) -> int | None:
    text = os.environ.get(variable, "")
    return int(text) if text.isdecimal() else None


def born(pid: int) -> int | None:
    """When a process was started, in a unit of the machine's own; None if it does not run, or no longer.

    Together with the number it names a process, since numbers are used again.
    """
    try:
        # Of Linux's own file the unit is ticks since the machine's start, which no change of the clock moves. The
        # second field, a name in brackets, may hold blanks and brackets; the start is the 20th after it. The first is
        # Z for a process that has ended and that nobody has waited for.
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        fields = text.rpartition(")")[2].split()
        return None if fields[0] in "ZX" else int(fields[19])
    except (FileNotFoundError, ProcessLookupError):
        pass
    try:
        return int(psutil.Process(pid).create_time())
    except psutil.Error:
        return None


def command_line() -> tuple[str, ...]:
    """The command that started this process."""
    return tuple(sys.orig_argv)


def script() -> str:
    """What this process runs: its script or module and arguments, the same in processes that it has spawned."""
    return " ".join(sys.argv) if sys.argv and sys.argv[0] else Path(sys.executable).name
