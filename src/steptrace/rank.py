"""This process's rank in its job, and numbers that all ranks share. For trainings: needs the standard library only."""

import os
import sys
from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

#: How often this process has asked rank 0 for each purpose.
_ASKED: Final = Counter[str]()


@dataclass(frozen=True)
class Rank:
    """A process's number in its job, of so many; the defaults where it is part of none, or not yet."""

    rank: int = 0
    world_size: int = 1

    @property
    def alone(self) -> bool:
        """Whether there is no other process."""
        return self.world_size == 1


ALONE: Final = Rank()
#: The backend of a group whose other ranks are not there: a program plans, or tests itself, with it on one process.
_NOBODY: Final = "fake"


def _distributed() -> Any:
    """The module torch.distributed once its group is initialised, else None."""
    distributed: Any = sys.modules.get("torch.distributed")
    return distributed if distributed and distributed.is_available() and distributed.is_initialized() else None


def this_rank() -> Rank:
    """This process's rank, as torch.distributed knows it, or else the launcher's environment variables.

    Ask late: some frameworks start their first rank without these variables.
    """
    if (distributed := _distributed()) is not None:
        return Rank(int(distributed.get_rank()), int(distributed.get_world_size()))
    texts = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
    return Rank(*map(int, texts)) if all(text.isdecimal() for text in texts) else ALONE


def ranks_can_talk() -> bool:
    """Whether this process is alone, or the ranks can exchange values."""
    return _distributed() is not None or this_rank().alone


def from_rank_0(value: int, purpose: str) -> int:
    """Rank 0's value, on every rank; all must call it, between the same two steps.

    It travels through the store by which the ranks have met: a collective would need a device, and a place in the order
    of the program's own.

    Args:
        value: this rank's, which rank 0 sends.
        purpose: what the value is for. It is part of the value's key in the store: a rank that asks for something
            else than rank 0 gives waits until the store's time limit, and never takes another purpose's value.
    """
    rank = this_rank()
    distributed = _distributed()
    if distributed is None or rank.alone or distributed.get_backend() == _NOBODY:
        return value
    store = distributed.distributed_c10d._get_default_store()
    key = f"steptrace/{purpose}/{_ASKED[purpose]}"
    _ASKED[purpose] += 1
    if rank.rank == 0:
        store.set(key, str(value))
    return int(store.get(key))
