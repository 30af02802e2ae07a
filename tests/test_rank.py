"""Numbers that all ranks share, where the others are there and where they are not."""

import torch
from torch import distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from steptrace.rank import Rank, from_rank_0, this_rank


def test_a_group_whose_other_ranks_are_not_there_shares_nothing() -> None:
    """As programs plan with it on one process; its store neither takes nor gives values."""
    for rank in (0, 2):
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=4)
        try:
            assert (this_rank(), from_rank_0(7, "steps")) == (Rank(rank, 4), 7)
            dist.all_reduce(torch.ones(2))
        finally:
            dist.destroy_process_group()
