"""A process's place among the ranks of its job. For trainings: needs the standard library only."""

import itertools
import os
import sys
from dataclasses import dataclass
from typing import Any, Final

#: How often the ranks have agreed.
_AGREED: Final = itertools.count()


@dataclass(frozen=True)
class Place:
    """Rank and number of ranks; None where it is part of no job, or not yet."""

    rank: int | None = None
    world_size: int | None = None


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
    return Place(rank, world_size)


def can_agree() -> bool:
    """Whether this process is alone, or the ranks can talk to each other."""
    distributed: Any = sys.modules.get("torch.distributed")
    together = distributed is not None and distributed.is_available() and distributed.is_initialized()
    return together or (place().world_size or 1) == 1


def agreed(value: int) -> int:
    """Rank 0's value, on every rank; all must ask for it, between the same two steps.

    It travels through the store by which the ranks have met: a collective would need a device, and a
    place in the order of the program's own.
    """
    rank = place().rank
    if (place().world_size or 1) == 1 or not can_agree():
        return value
    store, key = sys.modules["torch.distributed"].distributed_c10d._get_default_store(), f"steptrace/{next(_AGREED)}"
    if rank == 0:
        store.set(key, str(value))
    return int(store.get(key))
