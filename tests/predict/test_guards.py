"""Recompilations that are predicted: how often a guard fails, of which kind, and at which line.

What is expected here is what Dynamo itself does with the same calls (backend `eager`, on the CPU).
"""

from collections.abc import Callable

import pytest
import torch
import torch._dynamo.testing
from torch import Tensor, nn

from guard_changes import CHANGES
from steptrace.predict import Prediction, captured, graph_compiler, predict_syncs
from steptrace.predict.failed_guards import Failed
from steptrace.predict.guard_values import ALIASES
from steptrace.torch_names import release_of

pytestmark = pytest.mark.skipif(
    release_of(torch.__version__) < captured._OLDEST, reason="following compiled code takes PyTorch 2.13"
)


@pytest.fixture(autouse=True)
def without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only Dynamo is needed."""
    monkeypatch.setattr(graph_compiler, "launches_of", lambda *_, **__: [])


def on_gpu(*shape: int) -> Tensor:
    return torch.ones(shape, device="cuda")


def recompilations(program: Callable[[], None]) -> list[tuple[str, int, str]]:
    """The kind, number and line's text of the guards that fail in a program."""
    with predict_syncs(follow_compiled=True) as syncs:
        program()
        compiled = Prediction.so_far(syncs).compiled
    assert compiled is not None
    guards = [guard for code in compiled.codes for guard in code.recompilations]
    assert compiled.recompilations == sum(guard.recompilations for guard in guards)
    assert all(guard.file.endswith("test_guards.py") for guard in guards)
    return [(guard.kind, guard.recompilations, guard.code or "") for guard in guards]


def scaled(x: Tensor, factor: float) -> Tensor:
    return x * factor


class _Counts(nn.Module):
    """Counts its calls in a number, and has dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.dropout = nn.Dropout()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.layer(x)) * self.calls


def test_a_number_of_the_program_is_dynamic_at_its_second_value() -> None:
    def program() -> None:
        function = torch.compile(scaled)
        for factor in (2, 3, 4, 5):
            function(on_gpu(8), factor)

    assert recompilations(program) == [("value", 1, "return x * factor")]


def test_a_number_of_a_module_is_compiled_in_up_to_the_limit() -> None:
    def program() -> None:
        module = _Counts().cuda()
        compiled = torch.compile(module)
        for calls in range(5):
            module.calls = calls
            compiled(on_gpu(2, 4))

    with torch._dynamo.config.patch(recompile_limit=3), predict_syncs(follow_compiled=True) as syncs:
        program()
        codes = Prediction.so_far(syncs).compiled.codes
    assert [guard.kind for guard in codes[0].recompilations] == ["module_value"]
    assert codes[0].recompilations[0].recompilations == 2
    assert [code.unlowered for code in codes] == [None, None, None, "kinds"]


@pytest.mark.parametrize(("dynamic", "times"), [(None, 1), (False, 3), (True, 0)])
def test_a_size_is_dynamic_at_its_second_value_or_as_the_program_says(dynamic: bool | None, times: int) -> None:  # noqa: FBT001
    def program() -> None:
        function = torch.compile(lambda x: x.sin(), dynamic=dynamic)
        for size in (8, 9, 10, 11):
            function(on_gpu(size, 4))

    assert sum(number for _, number, _ in _sizes(program)) == times


def _sizes(program: Callable[[], None]) -> list[tuple[str, int, int | None]]:
    with predict_syncs(follow_compiled=True) as syncs:
        program()
        codes = Prediction.so_far(syncs).compiled.codes
    return [(guard.kind, guard.recompilations, guard.dimension) for code in codes for guard in code.recompilations]


#: What of `CHANGES` a guard compares, before and after; not for objects, whose kind says all.
VALUES: dict[str, tuple[str | None, str | None]] = {
    "size": ("4", "5"),
    "rank": ("1", "2"),
    "stride": ("3", "1"),
    "dtype": ("torch.float32", "torch.float64"),
    "requires_grad": ("False", "True"),
    "device": ("cpu", "cuda:0"),
    "kind of tensor": ("Tensor", "Parameter"),
    "value": ("2", "3"),
    "text": ("'a'", "'b'"),
    "flag": ("True", "False"),
    "length": ("1", "2"),
    "key": ("'b'", "'c'"),
    "type": ("list", "tuple"),
    "object": ("sin", "cos"),
    "alias": (None, None),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_guard_is_predicted_with_the_facts_that_pytorch_says_and_the_values(name: str) -> None:
    function, calls, kind, value, dimension = CHANGES[name]
    with predict_syncs(follow_compiled=True) as syncs:
        run = torch.compile(function)
        for arguments in [(torch.ones(3),), (on_gpu(3),)] if name == "device" else calls:
            run(*arguments)
        (guard,) = (guard for code in Prediction.so_far(syncs).compiled.codes for guard in code.recompilations)
    assert (guard.kind, guard.value, guard.dimension, guard.guard) == (kind, value, dimension, None)
    assert (guard.before, guard.now) == VALUES[name]


def test_of_several_tensors_that_are_or_are_not_the_same_the_first_pair_is_named() -> None:
    gone = frozenset((f"L['a{k}']", "L['x']") for k in range(100, 200))
    new = frozenset((f"L['b{k}']", "L['x']") for k in range(100, 200))
    for before, now, expected in ((gone, new, "x is a100"), (frozenset(), new, "x is not b100")):
        failed = Failed(ALIASES, before, now, None).recompiled(function="f", function_file="f.py", function_line=1)
        assert (failed.kind, failed.value) == ("alias", expected)


def test_modes_types_and_settings_are_compiled_for_once_each() -> None:
    def program() -> None:
        module = _Counts().cuda()
        compiled = torch.compile(module)
        for is_training in (True, False, True, False):
            module.train(is_training)
            compiled(on_gpu(2, 4))
        with torch.no_grad():
            compiled(on_gpu(2, 4))

    assert [(kind, number) for kind, number, _ in recompilations(program)] == [("training", 1), ("global_state", 1)]


def test_other_types_of_tensors_and_lengths_of_lists_are_compiled_for() -> None:
    def program() -> None:
        total = torch.compile(lambda xs: sum(x.sin() for x in xs))
        for length in (2, 3, 2):
            total([on_gpu(8) for _ in range(length)])

    assert [(kind, number) for kind, number, _ in recompilations(program)] == [("length", 1)]

    def of_types() -> None:
        function = torch.compile(lambda x: x.sin())
        for dtype in (torch.float32, torch.float16, torch.float32):
            function(on_gpu(8).to(dtype))

    assert [(kind, number) for kind, number, _ in recompilations(of_types)] == [("dtype", 1)]


def test_a_call_as_before_and_blocks_of_one_class_are_compiled_once() -> None:
    def program() -> None:
        blocks = [torch.compile(_Counts().cuda()) for _ in range(3)]
        for _ in range(2):
            for block in blocks:
                block(on_gpu(2, 4))

    assert recompilations(program) == []


def test_weights_that_a_module_s_text_holds_are_neither_read_nor_compiled_for() -> None:
    with predict_syncs(follow_compiled=True) as syncs:
        module = nn.EmbeddingBag(10, 4, mode="sum").cuda()
        compiled = torch.compile(module)
        rows = torch.zeros(2, 3, dtype=torch.int64, device="cuda")
        syncs.reset()
        for _ in range(2):
            compiled(rows)
            with torch.no_grad():
                module.weight.add_(1)
        prediction = Prediction.so_far(syncs)
    assert prediction.total == 0
    assert len(prediction.compiled.codes) == 1


def test_a_condition_on_the_device_is_read_and_loops_and_scans_run() -> None:
    from torch._higher_order_ops.associative_scan import associative_scan
    from torch._higher_order_ops.scan import scan
    from torch._higher_order_ops.while_loop import while_loop

    def add(a: Tensor, b: Tensor) -> Tensor:
        return a + b

    with predict_syncs() as syncs:
        x = torch.arange(4.0, device="cuda").requires_grad_()
        torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)).sum().backward()
        assert [site.phase for site in syncs.sites] == ["forward", "backward"]
        assert all(site.file.endswith("test_guards.py") and site.count == 1 for site in syncs.sites)
        torch.testing.assert_close(x.grad.cpu(), torch.arange(4.0).cos())
        times, _ = while_loop(lambda k, _: k < 3, lambda k, y: (k + 1, y * 2), (torch.zeros((), device="cuda"), x))
        assert int(times) == 3
        last, _ = scan(lambda a, b: (a + b, a * b), torch.zeros((), device="cuda"), x)
        assert float(last.detach()) == 6
        assert associative_scan(add, x, 0).tolist() == [0, 1, 3, 6]
        sums = associative_scan(lambda a, b: {"sum": a["sum"] + b["sum"]}, {"sum": x}, 0)
        assert sums["sum"].tolist() == [0, 1, 3, 6]
    assert syncs.unknown == []


def test_a_tensor_without_memory_is_on_another_device_than_one_of_the_host() -> None:
    seen = torch._dynamo.testing.CompileCounter()
    tensors = [torch.ones(4), torch.ones(4, device="meta"), torch.ones(4), torch.ones(4, device="meta")]

    def program(function: Callable[[Tensor, float], Tensor]) -> None:
        for tensor in tensors:
            function(tensor, 2.0)

    program(torch.compile(scaled, backend=seen))
    torch._dynamo.reset()
    found = recompilations(lambda: program(torch.compile(scaled)))
    assert [(kind, count) for kind, count, _ in found] == [("device", seen.frame_count - 1)] == [("device", 1)]
