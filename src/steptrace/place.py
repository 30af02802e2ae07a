"""A process's place among the ranks of its job. For trainings: needs the standard library only."""

import os
import sys
from dataclasses import dataclass
from typing import Any


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
