"""A process's place among the ranks of its job. For trainings: needs the standard library only."""

import os
import socket
import sys
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Place:
    """Rank, number of ranks, and a `job` that is equal for these ranks; None where it is part of none, or not yet."""

    rank: int | None = None
    world_size: int | None = None
    job: str | None = None


def place() -> Place:
    """This process's place, as torch.distributed knows it, or else the launcher's environment variables.

    Ask late: some frameworks start their first rank without these variables.
    """
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        rank, world_size = int(distributed.get_rank()), int(distributed.get_world_size())
    else:
        texts = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
        if not all(text.isdecimal() for text in texts):
            return Place()
        rank, world_size = map(int, texts)
    return Place(rank, world_size, _job() if world_size > 1 else None)


def _job() -> str:
    """The rendezvous address, or the Slurm step, or the parent that started the ranks."""
    env, host = os.environ, socket.gethostname()
    if "MASTER_ADDR" in env and "MASTER_PORT" in env:
        address = env["MASTER_ADDR"]
        each_machines_own = address in ("localhost", "::1") or address.startswith("127.")
        prefix = f"{host}/" if each_machines_own else ""
        return f"{prefix}{address}:{env['MASTER_PORT']}:{env.get('TORCHELASTIC_RUN_ID', '')}"
    if "SLURM_JOB_ID" in env and "SLURM_STEP_ID" in env:
        return f"slurm:{env['SLURM_JOB_ID']}.{env['SLURM_STEP_ID']}"
    return f"{host}:{os.getppid()}"
