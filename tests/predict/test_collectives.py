"""Collectives on the virtual device: what is asked for by NCCL's name, and where the host waits."""

import copy
import io
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn
from torch import distributed as dist

from steptrace.predict import backend, collectives, predict_syncs
from steptrace.predict.memory import allocator
from steptrace.predict.syncs import Syncs


@contextmanager
def job(backend: str | None) -> Iterator[Syncs]:
    """A prediction in a job of one rank."""
    with predict_syncs() as syncs:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
        try:
            yield syncs
        finally:
            dist.destroy_process_group()


@pytest.mark.parametrize("backend", ["nccl", "cpu:gloo,cuda:nccl", None])
def test_collectives_of_nccl_do_not_wait(backend):
    with job(backend) as syncs:
        assert backend is None or backend in (dist.get_backend(), dist.get_backend_config())
        values = torch.ones(3, device="cuda")
        dist.all_reduce(values, op=dist.ReduceOp.AVG)
        assert dist.broadcast(values, 0, async_op=True).wait()
        (reduced,) = dist.all_reduce(values, async_op=True).get_future().wait()
        assert (syncs.total, syncs.unknown) == (0, [])
        assert reduced.is_cuda
        assert values.tolist() == [1, 1, 1]


def test_a_barrier_and_values_on_the_host_wait():
    with job("nccl") as syncs:
        dist.barrier(device_ids=[0])
        assert [(site.op, site.kind, site.count) for site in syncs.sites] == [("c10d::barrier", "stream", 1)]
        syncs.reset()
        gathered = [None]
        dist.all_gather_object(gathered, {"an": "object"})
        assert gathered == [{"an": "object"}]
        assert {site.kind for site in syncs.sites} == {"h2d_copy", "d2h_copy"}


def test_gloo_on_a_gpu_cannot_be_judged():
    with job("gloo") as syncs:
        dist.all_reduce(torch.ones(3, device="cuda"))
        dist.all_reduce(torch.ones(3))
        assert (syncs.total, [(place.op, place.count) for place in syncs.unknown]) == (0, [("c10d::allreduce_", 1)])


def test_nothing_is_left_behind():
    c10d = dist.distributed_c10d
    before = [c10d._new_process_group_helper, c10d._get_object_coll_device, dist.is_nccl_available]
    with job("nccl"):
        assert dist.is_nccl_available()
    assert [c10d._new_process_group_helper, c10d._get_object_coll_device, dist.is_nccl_available] == before


def test_a_rank_has_the_device_of_its_number(monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_RANK", "2")
    with predict_syncs():
        assert (torch.cuda.device_count(), torch.cuda.current_device()) == (4, 2)
        assert torch.ones(1, device="cuda:2").device == torch.device("cuda", 2)
        with pytest.raises(RuntimeError, match="invalid device ordinal"):
            torch.ones(1, device="cuda:4")


def test_a_process_with_several_gpus_chooses_one(monkeypatch):
    monkeypatch.setattr(backend.machine, "gpus", 2)
    with predict_syncs() as syncs:
        on_second = torch.ones(2, device="cuda:1")
        assert {(on_second + 1).device, on_second.cuda(1).device} == {torch.device("cuda", 1)}
        assert on_second.to("cuda").device == torch.device("cuda", 0)
        assert syncs.total == 0
        for choose in (torch.cuda.device, torch.accelerator.device_index):
            with choose(1):
                assert (torch.cuda.current_device(), torch.ones(1).cuda().get_device()) == (1, 1)
            assert torch.cuda.current_device() == 0
        with torch.cuda.device_of(on_second):
            assert torch.cuda.Stream().device_index == 1
        torch.cuda.set_device(1)
        assert torch.ones(1).to("cuda:0").device == torch.device("cuda", 0)
        for wrong in (torch.cuda.set_device, torch.ones(1).cuda, lambda n: torch.cuda.device(n).__enter__()):
            with pytest.raises(RuntimeError, match="CUDA error: invalid device ordinal"):
                wrong(5)
        assert len(torch.cuda.get_rng_state_all()) == 2


def test_training_and_checkpoints_stay_on_their_gpu(monkeypatch):
    monkeypatch.setattr(backend.machine, "gpus", 2)
    with predict_syncs():
        model = nn.Linear(3, 2).to("cuda:1")
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.ones(4, 3, device="cuda:1")).sum().backward()
        optimizer.step()
        file = io.BytesIO()
        torch.save([copy.deepcopy(model).weight, optimizer.state[model.weight]["exp_avg"]], file)
        for location, gpu in ((None, 1), ("cuda:0", 0)):
            file.seek(0)
            loaded = torch.load(file, map_location=location)
            assert {tensor.device for tensor in loaded} == {torch.device("cuda", gpu)}


def test_a_sharded_model_that_is_made_without_memory_gets_it_on_the_device():
    """As in the FSDP2 example of pytorch/examples; its weights are drawn there, from a generator like CUDA's."""
    from torch.distributed.fsdp import fully_shard  # a second that no other test needs

    with job("nccl") as syncs:
        with torch.device("meta"):
            model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
        for layer in model:
            fully_shard(layer)
        model.to_empty(device="cuda:0")
        for layer in model:
            layer.reset_parameters()
        assert {parameter.device for parameter in model.parameters()} == {torch.device("cuda", 0)}
        model(torch.randn(3, 4, device="cuda", dtype=torch.float32)).sum().backward()
        syncs.reset()
        model(torch.randn(3, 4, device="cuda")).sum().backward()
        assert (syncs.total, syncs.unknown) == (0, [])


def test_the_generator_s_state_has_the_size_of_a_gpu_s():
    with predict_syncs():
        torch.manual_seed(7)
        state = torch.cuda.get_rng_state()
        assert (state.dtype, state.tolist()) == (torch.uint8, [7, *[0] * 15])


def test_what_a_collective_gave_is_freed_once_it_was_waited_for():
    with job("nccl"):
        values = torch.ones(10**6, device="cuda")
        before = allocator().live
        works = [dist.all_reduce(values + 1, async_op=True) for _ in range(2)]
        assert allocator().live > before
        works[0].wait()
        (reduced,) = works[1].get_future().wait()
        assert (works[0].is_completed(), works[0].wait(), reduced.sum().item()) == (True, True, 2e6)
        del reduced
        dist.all_reduce(values)  # what was waited for by its future alone is held until the next collective
        assert allocator().live == before


def test_what_a_hook_reduces_is_held_until_a_later_backward_pass_reduces():
    """A hook takes the collective's future: nobody waits for the collective itself."""
    reduced = []
    megabyte = 2**20

    def hook(gradient: Tensor) -> Tensor:
        reduced.append(allocator().live)
        future = dist.all_reduce(gradient.half(), async_op=True).get_future()
        return future.wait()[0].float()

    with job("nccl"):
        weight = torch.ones(megabyte // 4, device="cuda", requires_grad=True)
        weight.register_hook(hook)
        before = allocator().live
        weight.sum().backward()
        assert allocator().live - before == 1.5 * megabyte  # the gradient, and the halves
        weight.sum().backward()
        assert reduced[1] - reduced[0] == 1.5 * megabyte
        assert allocator().live - before == 1.5 * megabyte
    assert collectives._held == []
