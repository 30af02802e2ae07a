"""CUDA graphs during a prediction: nothing is counted while one is captured, and a replay computes once more."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from steptrace.predict import predict_syncs
from steptrace.predict.limit import WaitInCaptureError
from steptrace.predict.memory import allocator
from steptrace.predict.syncs import Syncs


def captured(body: Callable[[], object], **options: object) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, **options):
        body()
    return graph


def calls(syncs: Syncs) -> dict[str, list[tuple[str, bool]]]:
    """Part of the step of each operator, and whether a graph launches it, by name."""
    found: dict[str, list[tuple[str, bool]]] = {}
    for call in syncs.operators:
        found.setdefault(call.name.split(".")[1], []).append((call.phase, call.in_graph))
    return found


def test_a_replay_computes_the_captured_step_once_more() -> None:
    with predict_syncs() as syncs:
        weight = torch.ones(3, device="cuda", requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=1.0)
        inputs = torch.zeros(3, device="cuda")
        results: list[torch.Tensor] = []

        def step() -> None:
            results.append((weight * inputs).sum())
            results[0].backward()
            optimizer.step()

        graph = captured(step)
        assert torch.cuda.is_current_stream_capturing() is False
        values = torch.tensor([1.0, 2.0, 3.0]).pin_memory()
        for gradient, expected in ((1, [0, -1, -2]), (2, [-2, -5, -8])):
            inputs.copy_(gradient * values, non_blocking=True)
            syncs.reset()
            graph.replay()
            assert syncs.total == 0
            assert weight.tolist() == expected
        assert weight.grad is not None
        assert weight.grad.tolist() == [2, 4, 6]
        found = calls(syncs)
        assert found["mul"] == [("forward", False), ("backward", True)]  # the first one stands for the graph's launch
        assert [phase for phase, in_graph in found["_foreach_add_"] if in_graph] == ["optimizer"]


def test_nothing_runs_while_a_graph_is_captured() -> None:
    with predict_syncs() as syncs:
        inputs = torch.ones(3, device="cuda")
        before = syncs.operator_total
        graph = captured(lambda: (inputs.sin().sum(), torch.rand(3, device="cuda")))
        assert syncs.operator_total == before
        graph.replay()
        assert syncs.operator_total == before + 3
        graph.reset()
        with pytest.raises(RuntimeError, match="without a preceding successful capture"):
            graph.replay()


def test_random_numbers_differ_from_replay_to_replay() -> None:
    with predict_syncs():
        drawn: list[torch.Tensor] = []
        graph = captured(lambda: drawn.append(torch.rand(8, device="cuda")))
        graph.replay()
        first = drawn[0].tolist()
        graph.replay()
        assert drawn[0].tolist() != first


@pytest.mark.parametrize(
    "body",
    [
        lambda x: x.sum().item(),
        lambda x: x[x > 0],
        lambda x: x.cpu(),
        lambda _: torch.tensor([1.0], device="cuda"),
        lambda _: torch.cuda.synchronize(),
        lambda _: torch.cuda.current_stream().synchronize(),
    ],
)
def test_what_makes_the_host_wait_cannot_be_captured(body: Callable[[torch.Tensor], object]) -> None:
    """CUDA refuses it, too."""
    with predict_syncs() as syncs:
        x = torch.ones(3, device="cuda")
        with pytest.raises(WaitInCaptureError, match="operation not permitted when stream is capturing"):
            captured(lambda: body(x))
        syncs.reset()
        assert x.sum().item() == 3  # the program may go on
        assert syncs.total == 1


def test_an_optimizer_that_is_not_capturable_is_refused_by_pytorch() -> None:
    with predict_syncs():
        weight = nn.Parameter(torch.ones(3, device="cuda"))
        optimizer = torch.optim.Adam([weight])
        weight.grad = torch.ones(3, device="cuda")
        with pytest.raises(RuntimeError, match="capturable"):
            captured(optimizer.step)


def test_a_capture_needs_a_stream_of_its_own_and_a_pool_can_be_shared() -> None:
    with predict_syncs():
        graph = torch.cuda.CUDAGraph()
        with pytest.raises(RuntimeError, match="non-default stream"):
            graph.capture_begin()
        x = torch.ones(3, device="cuda")
        first = captured(lambda: x + 1)
        second = captured(lambda: x + 1, pool=first.pool())
        assert second.pool() == first.pool()
        assert captured(lambda: x + 1, pool=torch.cuda.graph_pool_handle()).pool() != first.pool()
    assert torch.cuda.graph.default_capture_stream is None  # nothing of a prediction stays


def test_graphed_callables_train() -> None:
    with predict_syncs() as syncs:
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)).cuda()
        expected = [parameter.tolist() for parameter in model.parameters()]
        x = torch.ones(2, 4, device="cuda", requires_grad=True)
        graphed = torch.cuda.make_graphed_callables(model, (x,))
        assert [parameter.tolist() for parameter in model.parameters()] == expected
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        syncs.reset()
        graphed(x).sum().backward()
        gradients = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
        optimizer.zero_grad()
        assert syncs.total == 0
        assert any(call.in_graph for call in syncs.operators)
        assert [tuple(g.shape) for g in gradients] == [tuple(p.shape) for p in model.parameters()]
        assert gradients[-1].item() == 2  # of the last bias: one for each row


def test_the_memory_of_a_capture_is_held_until_the_graph_is_gone() -> None:
    with predict_syncs():
        x = torch.ones(1 << 20, device="cuda")
        before = allocator().live
        graph = captured(lambda: (x.sin().cos().sum(), None)[1])
        assert allocator().live >= before + 2 * x.nbytes
        del graph
        assert allocator().live == before


def test_profilers_for_nvtx_wait_for_the_device() -> None:
    with predict_syncs() as syncs:
        x = torch.ones(3, device="cuda")
        with torch.autograd.profiler.emit_nvtx():
            x + 1
        assert [site.op for site in syncs.sites] == ["torch.cuda.synchronize"]
        assert syncs.total == 2
