"""Graphs and recompilations that are predicted are those of PyTorch itself, on the CPU, for the same program."""

import importlib
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch._dynamo import graph_break, mark_dynamic, mark_static
from torch._dynamo.trace_rules import get_torch_obj_rule_map
from torch._dynamo.utils import clear_compilation_metrics, get_compilation_metrics

from steptrace.predict import Prediction, captured, graph_compiler, predict_syncs
from steptrace.torch_names import release_of
from steptrace.workloads.masked_losses import BooleanMaskLoss

pytestmark = pytest.mark.skipif(
    release_of(torch.__version__) < captured._OLDEST, reason="following compiled code takes PyTorch 2.13"
)
#: A program, for a device and a form of `torch.compile`.
Program = Callable[[str, Any], object]


@pytest.fixture(autouse=True)
def without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only Dynamo is needed."""
    with warnings.catch_warnings():  # PyTorch's modules use what it deprecates
        warnings.simplefilter("ignore")
        importlib.import_module("torch._inductor.cudagraph_trees")
    monkeypatch.setattr(graph_compiler, "launches_of", lambda *_, **__: [])


def sizes(
    device: str,
    compiled: Any,
    *,
    function: Callable[[Tensor], Tensor],
    shapes: Sequence[Sequence[int]],
    mark: Callable[[Tensor], None] = lambda _: None,
    **options: Any,
) -> None:
    """Calls a function of a tensor for each of these shapes; `mark` marks the first."""
    run = compiled(function, **options)
    for place, shape in enumerate(shapes):
        x = torch.ones(*shape, device=device)
        if not place:
            mark(x)
        run(x)


def numbers(device: str, compiled: Any, *, given: Sequence[object], **options: Any) -> None:
    run = compiled(lambda x, number: x * number, **options)
    for number in given:
        run(torch.ones(3, device=device), number)


def small_or_large(x: Tensor) -> Tensor:
    return x * 2 if x.shape[0] > 8 else x * 3


def broken(x: Tensor) -> Tensor:
    doubled = x * 2
    graph_break()
    return doubled + 1


def aliases(device: str, compiled: Any) -> None:
    """Two tensors, the same one twice, and the two again."""
    run = compiled(lambda a, b: a + b)
    x, y = (torch.ones(3, device=device) for _ in range(2))
    for other in (y, x, y):
        run(x, other)


def summed(given: dict[str, Tensor]) -> Tensor:
    total = given["a"] * 2
    if "b" in given:
        total = total + given["b"]
    return total


def contents(device: str, compiled: Any) -> None:
    run = compiled(summed)
    x = torch.ones(3, device=device)
    for given in ({"a": x}, {"a": x, "b": x + 1}, {"a": x}):
        run(given)


class _Wide(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)
        return y.relu()


def widths(device: str, compiled: Any) -> None:
    for width in (4, 5, 6):
        compiled(_Wide(width).to(device))(torch.ones(2, width, device=device))


_rate = 1.0


def behind_a_break(device: str, compiled: Any) -> None:
    """A global that is read only behind a graph break."""
    global _rate

    def scaled(x: Tensor) -> Tensor:
        y = x * 2
        graph_break()
        return y * _rate

    run = compiled(scaled)
    for _rate in (1.0, 2.0, 1.0):
        run(torch.ones(3, device=device))


def optimizer(device: str, compiled: Any, *, rate: Any, form: str) -> None:
    """Steps of AdamW as PyTorch's recipe compiles them, with a scheduler.

    By default PyTorch updates lists of tensors at once on CUDA, and on the CPU each by itself.
    """
    model = nn.Linear(4, 4).to(device)
    adam = torch.optim.AdamW(model.parameters(), rate, foreach=False)
    schedule = torch.optim.lr_scheduler.LambdaLR(adam, lambda epoch: 0.9**epoch)
    step = compiled(adam.step if form == "method" else lambda: adam.step(), fullgraph=False)
    for _ in range(4):
        model(torch.ones(2, 4, device=device)).sum().backward()
        step()
        schedule.step()
        adam.zero_grad()


ROWS: Sequence[Sequence[int]] = ((8, 4), (9, 4), (10, 4))
DOUBLE = partial(sizes, function=lambda x: x * 2)


@pytest.mark.parametrize(
    ("program", "recompilations"),
    [
        (partial(DOUBLE, shapes=ROWS), 1),
        (partial(DOUBLE, shapes=ROWS, dynamic=True), 0),
        (partial(DOUBLE, shapes=ROWS, dynamic=False), 2),
        (partial(DOUBLE, shapes=ROWS, mark=lambda x: mark_dynamic(x, 0)), 0),
        (partial(DOUBLE, shapes=ROWS, dynamic=True, mark=lambda x: mark_static(x, 0)), 1),
        (partial(DOUBLE, shapes=((8, 4), (1, 4), (9, 4), (1, 4))), 2),
        (partial(DOUBLE, shapes=((4, 4), (5, 5), (6, 7)), dynamic=True), 1),
        (partial(sizes, function=small_or_large, shapes=((4,), (5,), (6,), (9,), (12,), (7,))), 2),
        (partial(sizes, function=broken, shapes=ROWS), 2),
        (partial(numbers, given=(2, 3, 4)), 1),
        (partial(numbers, given=(2, 3, 4), dynamic=False), 2),
        (partial(numbers, given=(2.0, 3.0, 4.0)), 1),
        (aliases, 1),
        (contents, 1),
        (widths, 2),
        (behind_a_break, 1),
        (partial(optimizer, rate=1e-3, form="function"), 1),
        (partial(optimizer, rate=1e-3, form="method"), 1),
    ],
)
def test_graphs_and_recompilations_are_pytorchs_own(program: Program, recompilations: int) -> None:
    graphs = []

    def backend(graph: Any, _inputs: object) -> Any:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    program("cpu", partial(torch.compile, backend=backend))
    torch._dynamo.reset()
    with predict_syncs(follow_compiled=True) as syncs:
        program("cuda", torch.compile)
        compiled = Prediction.so_far(syncs).compiled
    assert all(code.unlowered in (None, "no_operators") for code in compiled.codes)
    assert (sum(code.graphs for code in compiled.codes), compiled.recompilations) == (len(graphs), recompilations)


def floats(device: str, compiled: Any, *, function: Callable[[Tensor, Any], Tensor], given: Sequence[object]) -> None:
    """Calls a function of a tensor and a number for each of these numbers."""
    run = compiled(function)
    for number in given:
        run(torch.ones(3, device=device), number)


def scheduled(device: str, compiled: Any, *, optimizer_of: Callable[..., Any]) -> None:
    """Steps of a compiled optimizer whose learning rate is a number that changes."""
    model = nn.Linear(4, 4).to(device)
    made = optimizer_of(model.parameters(), lr=0.1)
    step = compiled(made.step)
    for _ in range(4):
        model(torch.ones(2, 4, device=device)).sum().backward()
        step()
        made.param_groups[0]["lr"] *= 0.9
        made.zero_grad()


def named_behind_a_break(x: Tensor, name: Any) -> Tensor:
    doubled = x * 2
    graph_break()
    return doubled * len(name)


def rows_behind_a_break(x: Tensor, _: Any) -> Tensor:
    rows = x.shape[0]
    graph_break()
    for row in range(rows):
        x = x + row
    return x


def rows(device: str, compiled: Any) -> None:
    run = compiled(rows_behind_a_break)
    for count in (3, 4, 5, 6):
        run(torch.ones(count, 2, device=device), None)


def scaled_by_what_it_reads(device: str, compiled: Any) -> None:
    def scaled(x: Tensor) -> Tensor:
        return x * x.sum().item()

    run = compiled(scaled)
    for number in (1.0, 2.0, 3.0, 4.0):
        run(torch.full((3,), number, device=device))


@pytest.mark.parametrize(
    ("program", "recompilations"),
    [
        # A condition on a number, a number that an operator takes as a constant, NaN, and another type.
        (partial(floats, function=lambda x, rate: x * 2 if rate > 0.5 else x * 3, given=(0.1, 0.2, 0.9, 0.3, 0.95)), 2),
        (partial(floats, function=lambda x, rate: x * rate, given=(0.1, 0.2, 0.9, 0.3)), 1),
        (partial(floats, function=lambda x, rate: x.clamp(min=rate), given=(0.1, 0.2, 0.3, 0.1)), 2),
        (partial(floats, function=lambda x, rate: x * rate, given=(0.5, 0.6, float("nan"), 0.7)), 2),
        (partial(floats, function=lambda x, rate: x * rate, given=(1.0, 2, 3.0, 4, 5)), 2),
        (partial(scheduled, optimizer_of=torch.optim.SGD), 3),
        (partial(scheduled, optimizer_of=partial(torch.optim.AdamW, foreach=True)), 3),
        (partial(scheduled, optimizer_of=partial(torch.optim.AdamW, foreach=False)), 1),
        # What a function does behind a graph break, by an argument, by a size, and by a number that it reads.
        (partial(floats, function=named_behind_a_break, given=("a", "bb", "ccc")), 2),
        (rows, 4),
        (scaled_by_what_it_reads, 1),
    ],
)
def test_recompilations_by_numbers_are_those_with_graphs_of_aten_operators(
    program: Program, recompilations: int
) -> None:
    """Numbers that an operator does not take as tensors are found only where ATen's graphs are made."""
    torch._dynamo.reset()
    clear_compilation_metrics()
    program("cpu", partial(torch.compile, backend="aot_eager"))
    known = [one for one in get_compilation_metrics() if one.recompile_reason and one.fail_type is None]
    torch._dynamo.reset()
    with predict_syncs(follow_compiled=True) as syncs:
        program("cuda", torch.compile)
        compiled = Prediction.so_far(syncs).compiled
    assert (len(known), compiled.recompilations) == (recompilations, recompilations)


def test_calls_as_before_are_not_followed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each pass of Dynamo takes seconds."""
    passes = []
    capture = captured.capture
    monkeypatch.setattr(captured, "capture", lambda *args, **options: passes.append(1) or capture(*args, **options))
    with predict_syncs(follow_compiled=True):
        x = torch.ones(3, device="cuda")
        for name in ("a", "bb", "a", "bb", "a"):
            torch.compile(named_behind_a_break)(x, name)
        assert len(passes) == 2


def test_an_optimizer_is_compiled_alike_after_a_process_group_was_made() -> None:
    """Dynamo then makes its table of PyTorch's functions anew, in which those of the prediction must not stand."""
    with predict_syncs(follow_compiled=True) as syncs:
        dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
        try:
            optimizer("cuda", torch.compile, rate=1e-3, form="function")
        finally:
            dist.destroy_process_group()
        compiled = Prediction.so_far(syncs).compiled
    assert not [rule for rule in get_torch_obj_rule_map() if "steptrace" in str(getattr(rule, "__module__", ""))]
    assert compiled.recompilations == 1
    assert not [found for code in compiled.codes for found in code.breaks if found.kind == "graph break in loop"]


def given_none(device: str, compiled: Any) -> None:
    """An argument that is a list, then None."""
    run = compiled(lambda x, others: x * 2 if others is None else x + others[0])
    x = torch.ones(3, device=device)
    for others in ([x, x], None, [x, x]):
        run(x, others)


@pytest.mark.parametrize(
    ("program", "recompilations"),
    [
        (given_none, 1),
        (partial(numbers, given=(float("nan"),) * 3), 0),
    ],
)
def test_values_that_do_not_compare_are_told_apart_as_pytorch_does(program: Program, recompilations: int) -> None:
    with predict_syncs(follow_compiled=True) as syncs:
        program("cuda", torch.compile)
        assert Prediction.so_far(syncs).compiled.recompilations == recompilations


def test_a_size_that_depends_on_data_is_a_number_behind_its_break() -> None:
    def positive_mean(x: Tensor) -> Tensor:
        y = x[x > 0]
        return x.sum() if y.numel() == 0 else y.mean()

    with predict_syncs(follow_compiled=True) as syncs:
        torch.compile(positive_mean)(torch.ones(8, device="cuda"))
        (code,) = Prediction.so_far(syncs).compiled.codes
    assert (code.unlowered, [found.code for found in code.breaks]) == (None, ["y = x[x > 0]"])


def test_breaks_of_a_study_s_own_loss_are_seen() -> None:
    with predict_syncs(follow_compiled=True) as syncs:
        scores = torch.ones(2, 3, 4, 4, device="cuda", requires_grad=True)
        torch.compile(BooleanMaskLoss())(scores, torch.zeros(2, 4, 4, dtype=torch.long, device="cuda"))
        (code,) = Prediction.so_far(syncs).compiled.codes
    assert {Path(str(found.file)).name for found in code.breaks} == {"masked_losses.py"}


def test_kernels_for_another_size_share_the_graphs() -> None:
    with predict_syncs(follow_compiled=True) as syncs:
        DOUBLE("cuda", torch.compile, shapes=ROWS, dynamic=True)
        codes = Prediction.so_far(syncs).compiled.codes
    assert [(code.graphs, code.shares_graphs) for code in codes] == [(1, False), (0, True), (0, True)]


def test_a_graph_break_ends_the_program_that_asks_for_one_graph() -> None:
    with predict_syncs(follow_compiled=True) as syncs:
        run = torch.compile(broken, fullgraph=True)
        with pytest.raises(torch._dynamo.exc.Unsupported, match=r"(?s)graph_break.*test_compiled_counts.py\", line"):
            run(torch.ones(3, device="cuda"))
        (code,) = Prediction.so_far(syncs).compiled.codes
        with pytest.raises(torch._dynamo.exc.Unsupported):  # again, as on a GPU
            run(torch.ones(3, device="cuda"))
    assert code.fullgraph
    assert [found.code for found in code.breaks] == ["graph_break()"]
