"""Compiled code on several GPUs: collectives in its graphs, DistributedDataParallel, and modules that FSDP shards."""

from collections.abc import Iterator
from dataclasses import replace

import msgspec
import pytest
import torch
from torch import Tensor, nn
from torch import distributed as dist

from steptrace.documents.prediction import predicted_step
from steptrace.documents.probe import Prediction as Written
from steptrace.estimate.compiled import _as_graphs, _items_of_code, compiled_items
from steptrace.estimate.gpus import gpu_named
from steptrace.estimate.queue import Collective, GraphLaunch, Join
from steptrace.estimate.step import estimate_prediction
from steptrace.estimate.work import Kernel
from steptrace.predict import Prediction, captured, predict_syncs
from steptrace.torch_names import release_of

pytestmark = [
    pytest.mark.skipif(
        release_of(torch.__version__) < captured._OLDEST,
        reason="finding the kernels of compiled code takes PyTorch 2.13",
    ),
    # Its new name came in 2.13.
    pytest.mark.filterwarnings("ignore:.*all_gather_tensor` is deprecated:FutureWarning"),
    # DistributedDataParallel's own timers know the CPU and CUDA alone.
    pytest.mark.filterwarnings("ignore:Time stats are currently only collected"),
]


def all_reduced(values: Tensor) -> Tensor:
    from torch.distributed import _functional_collectives as functional

    result: Tensor = functional.all_reduce(values, "sum", dist.group.WORLD)
    return result


def reduced_in_place(values: Tensor) -> Tensor:
    values = values.contiguous()
    dist.all_reduce(values)
    return values


def gathered(values: Tensor) -> Tensor:
    from torch.distributed import _functional_collectives as functional

    result: Tensor = functional.all_gather_tensor(values, 0, dist.group.WORLD)
    return result[: len(values)]


class _Block(nn.Module):
    """Two products, then a collective of the result if one is named."""

    def __init__(self, communicate=lambda values: values) -> None:
        super().__init__()
        self.wide = nn.Linear(16, 32)
        self.narrow = nn.Linear(32, 16)
        self.communicate = communicate

    def forward(self, x: Tensor) -> Tensor:
        return x + self.communicate(self.narrow(self.wide(x).relu()))


@pytest.fixture
def job() -> Iterator[None]:
    """A job of one rank, in a prediction that follows compiled code."""
    with predict_syncs(follow_compiled=True) as syncs:
        dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
        try:
            yield syncs
        finally:
            dist.destroy_process_group()


def second_step(syncs, model: nn.Module, width: int = 16) -> Prediction:
    for _ in range(2):
        syncs.reset()
        model(torch.ones(8, width, device="cuda")).sum().backward()
    return Prediction.so_far(syncs)


@pytest.mark.parametrize(
    ("communicate", "forward", "backward"),
    [
        (all_reduced, "all_reduce_", "all_reduce"),
        (reduced_in_place, "all_reduce_", "all_reduce"),
        (gathered, "all_gather_into_tensor", "reduce_scatter_tensor"),
    ],
)
def test_collectives_are_part_of_a_graph_forward_and_backward(job, communicate, forward, backward):
    prediction = second_step(job, torch.compile(nn.Sequential(_Block(communicate), _Block(communicate)).cuda()))
    (code,) = prediction.compiled.codes
    assert (code.graphs, code.breaks, code.unlowered, prediction.total) == (1, (), None, 0)
    names = [call.name.split(".")[1] for call in code.kernels.forward]
    assert (names.count(forward), names.count("wait_tensor"), names.count("addmm")) == (2, 2, 4)
    assert any(call.name.split(".")[1].startswith(backward) for call in code.kernels.backward)
    alone, of_two = (
        predicted_step([msgspec.json.decode(msgspec.json.encode(replace(prediction, devices=n)), type=Written)])
        for n in (1, 2)
    )
    assert sum(isinstance(item, Collective) for item in compiled_items(of_two)) >= 3
    estimate = estimate_prediction(of_two, gpu_named("H100"))
    assert estimate.communication_ms is not None
    assert estimate.compiled is not None
    # On one GPU they send nothing.
    assert compiled_items(alone)
    assert not any(isinstance(item, Collective) for item in compiled_items(alone))


@pytest.mark.parametrize("compiles_outside", [True, False], ids=["compile(DDP)", "DDP(compile)"])
def test_the_module_in_distributed_data_parallel_is_what_is_compiled(job, compiles_outside):
    model = nn.Sequential(_Block(), _Block()).cuda()
    if compiles_outside:
        model = torch.compile(nn.parallel.DistributedDataParallel(model, device_ids=[0]))
    else:
        model = nn.parallel.DistributedDataParallel(torch.compile(model), device_ids=[0])
    prediction = second_step(job, model)
    (code,) = prediction.compiled.codes
    assert (code.graphs, code.breaks, code.unlowered) == (1, (), None)
    operators = prediction.operator_calls
    backward = prediction.compiled.queue.index(-3)
    sent = [place for place in prediction.compiled.queue if place >= 0 and "allreduce" in operators[place].name]
    assert sent
    assert all(prediction.compiled.queue.index(place) > backward for place in sent)


@pytest.mark.parametrize("compiles_outside", [True, False], ids=["compile(DDP)", "DDP(compile)"])
def test_each_bucket_s_part_of_a_graph_keeps_its_kernels(job, compiles_outside):
    model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(12))).cuda()  # 50 MB: several buckets
    if compiles_outside:
        model = torch.compile(nn.parallel.DistributedDataParallel(model, device_ids=[0]))
    else:
        model = nn.parallel.DistributedDataParallel(torch.compile(model), device_ids=[0])
    (code,) = second_step(job, model, 1024).compiled.codes
    assert (code.graphs, code.unlowered) == (1, None)
    assert sum("addmm" in call.name for call in code.kernels.forward) == 12
    assert sum("mm" in call.name for call in code.kernels.backward) == 23


def per_block(model: nn.Sequential) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    for block in model:
        block.compile()
        fully_shard(block)
    return fully_shard(model)


def as_a_whole(model: nn.Sequential) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    for block in model:
        fully_shard(block)
    return torch.compile(fully_shard(model))


@pytest.mark.parametrize("shard", [per_block, as_a_whole])
def test_what_fsdp_shards_is_compiled_between_its_hooks(job, shard):
    prediction = second_step(job, shard(nn.Sequential(_Block(), _Block()).cuda()))
    # The first block gets an input without a gradient.
    assert [(code.graphs, code.unlowered) for code in prediction.compiled.codes] == [(1, None), (1, None)]
    assert {len([c for c in code.kernels.forward if "addmm" in c.name]) for code in prediction.compiled.codes} == {2}
    assert [place for place in prediction.compiled.queue if place <= -2] == [-2, -4, -5, -3]
    names = [prediction.operator_calls[place].name for place in prediction.compiled.queue if place >= 0]
    # FSDP's own work stays outside of the compiled code, and none of the code's products does.
    assert prediction.compiled.queue.index(-2) > 1
    assert not [name for name in names if "mm" in name]


def test_a_graph_waits_where_its_code_waits():
    from steptrace.documents.estimate import OperatorCalls, TensorSpec

    tensor = TensorSpec(shape=(1024,), dtype="float32", strides=(1,))

    def call(name: str) -> OperatorCalls:
        return OperatorCalls(
            name=name, inputs=(tensor,), outputs=(tensor,), is_view=False, flop=0, calls=1, phase="", file=None,
            line=None, arguments={"read": 4096, "written": 4096, "operators": 1},
        )  # fmt: skip

    calls = [
        call(name)
        for name in ("inductor.pointwise", "_c10d_functional.all_reduce.default", "inductor.pointwise",
                     "_c10d_functional.wait_tensor.default", "inductor.pointwise")
    ]  # fmt: skip
    flags = {"tuned": False, "tf32": False, "tf32_convolutions": False}
    items = list(_items_of_code(calls, several=True, **flags))
    assert [type(item) for item in items] == [Kernel, Collective, Kernel, Join, Kernel]
    assert [type(item) for item in _as_graphs(items)] == [GraphLaunch, Collective, GraphLaunch, Join, GraphLaunch]
    assert [type(item) for item in _items_of_code(calls, several=False, **flags)] == [Kernel] * 3
