"""What the tests have several ranks do: run by torchrun, `ranks_program.py CONFIG OUT.json`.

Each rank counts the all-reduces of a step and collects the gradients for several settings; rank 0 writes the answers.
"""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from omegaconf import OmegaConf
from torch.profiler import ProfilerActivity, profile

from steptrace.config.resolved import resolved_config
from steptrace.lab.distributed import bucket_bytes, process_group, ranks_of
from steptrace.lab.loop import train_step
from steptrace.lab.setup import load_config, training
from steptrace.rank import from_rank_0

SETTINGS = {
    "plain": {},
    "static": {"distributed.static_graph": True, "distributed.gradient_as_bucket_view": True},
    "bf16": {"distributed.comm_hook": "bf16"},
    "accumulated": {"step.accumulate": 2},
    "accumulated static": {"step.accumulate": 2, "distributed.static_graph": True},
    "synced": {"step.accumulate": 2, "distributed.no_sync": False},
}


def from_every_rank(value, ranks):
    """Each rank's value, by rank."""
    values = [None] * ranks.world_size
    dist.all_gather_object(values, value)
    return values


def answer(config, ranks):
    """The third step's all-reduces, and the weights after it, as every rank has them."""
    with training(config, 7, ranks) as parts:
        for _ in range(2):  # PyTorch settles on its buckets in the first, and says so from the third on
            train_step(parts)
        with profile(activities=[ProfilerActivity.CPU], acc_events=True) as profiler:
            train_step(parts)
        calls = sum(event.count for event in profiler.key_averages() if event.key == "c10d::allreduce_")
        weights = torch.cat([p.detach().flatten() for p in parts.model.parameters()])
        buckets = bucket_bytes(parts.model)
    everywhere = from_every_rank(weights, ranks)
    return {
        "calls": calls,
        "same": all(torch.equal(weights, other) for other in everywhere),
        "weights": weights.tolist(),
        "buckets": buckets,
        "threads": from_every_rank(torch.get_num_threads(), ranks),
    }


def main(path, out):
    config = load_config(Path(path))
    ranks = ranks_of(config)
    answers = {}
    with process_group(config, ranks):
        for name, changes in SETTINGS.items():
            changed = OmegaConf.load(path)
            for key, value in changes.items():
                OmegaConf.update(changed, key, value)
            answers[name] = answer(resolved_config(OmegaConf.to_container(changed), path), ranks)
        steps = from_rank_0(5 + ranks.rank, "steps")
        if not ranks.rank:
            from_rank_0(9, "a branch that rank 0 alone takes")
        watched = from_rank_0(7 - ranks.rank, "watched")
        agreements = from_every_rank([steps, watched], ranks)
    answers["plain"]["agreements"] = agreements
    if ranks.rank == 0:
        Path(out).write_text(json.dumps(answers))


if __name__ == "__main__":
    main(*sys.argv[1:])
