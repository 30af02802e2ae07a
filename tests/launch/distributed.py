"""Trainings of several ranks, as they are written for GPUs.

`distributed.py ddp|fsdp` for torchrun, or `spawned INTERPRETER`, which starts its ranks itself.
"""

import os
import socket
import sys

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

STEPS = 200
local = int(os.environ.get("LOCAL_RANK", "0"))
torch.manual_seed(0)
torch.cuda.set_device(local)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)).cuda()


def train(network, log):
    optimizer = torch.optim.AdamW(network.parameters())
    for step in range(STEPS):
        inputs = torch.randn(4, 8).to(f"cuda:{local}", non_blocking=True)
        optimizer.zero_grad()
        loss = network(inputs).square().mean()
        loss.backward()
        optimizer.step()
        log(step, loss.detach())


def ddp():
    dist.init_process_group("nccl")
    assert (dist.get_backend(), dist.get_world_size()) == ("nccl", 2)
    alone = dist.new_group([0])

    def log(step, loss):
        dist.all_reduce(loss, op=dist.ReduceOp.AVG)
        if dist.get_rank() == 0:
            dist.all_reduce(loss, group=alone)
        total.add_(loss)
        if step % 2:
            dist.barrier()

    total = torch.zeros((), device="cuda")
    train(nn.parallel.DistributedDataParallel(model, device_ids=[local]), log)


def fsdp():
    dist.init_process_group(device_id=torch.device("cuda", local))
    for layer in (model[0], model[2], model):
        fully_shard(layer)
    assert all(parameter.device == torch.device("cuda", local) for parameter in model.parameters())
    train(model, lambda _, loss: loss.item())


def rank_of_several(rank, world_size, address):
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=address, rank=rank, world_size=world_size)
    here = nn.Linear(8, 1).to(rank)
    assert next(here.parameters()).device == torch.device("cuda", rank)
    train(nn.parallel.DistributedDataParallel(here, device_ids=[rank]), lambda _, loss: loss.item())


def spawned(interpreter):
    torch.multiprocessing.set_executable(interpreter)
    count = torch.cuda.device_count()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(rank_of_several, args=(count, f"tcp://127.0.0.1:{port}"), nprocs=count)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
