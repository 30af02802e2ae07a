"""What a program asks of torch.compile: backends, modes, stances, marks of sizes, and where its tensors lie."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from steptrace.documents.compiled import CompiledCode
from steptrace.predict import Prediction, captured, predict_syncs
from steptrace.torch_names import release_of

needs_inductor = pytest.mark.skipif(
    release_of(torch.__version__) < captured._OLDEST, reason="following compiled code takes PyTorch 2.13"
)


def codes_of(program: Callable[[], object]) -> tuple[CompiledCode, ...]:
    """The compiled code of a program."""
    with predict_syncs(follow_compiled=True) as syncs:
        program()
        compiled = Prediction.so_far(syncs).compiled
    return () if compiled is None else compiled.codes


def recompilations_of(codes: tuple[CompiledCode, ...]) -> int:
    """How often code is compiled again."""
    return sum(guard.recompilations for code in codes for guard in code.recompilations)


def launches_of(code: CompiledCode) -> tuple[int, int]:
    """The number of kernels forward and backward."""
    assert code.kernels is not None, (code.unlowered, code.reason)
    return len(code.kernels.forward), len(code.kernels.backward)


def cuda(*shape: int) -> Tensor:
    return torch.ones(*shape, device="cuda")


def doubled(x: Tensor) -> Tensor:
    return x * 2


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "fast"},
        {"backend": "inductr"},
        {"mode": "default", "options": {"max_autotune": True}},
        {"options": {"max_autotun": True}},
        {"options": {"max_autotune": "yes"}},
        {"fullgrap": True},
    ],
    ids=["mode", "backend", "both", "option", "type", "argument"],
)
def test_what_pytorch_refuses_is_refused_with_its_own_error(options: dict[str, Any]) -> None:
    with pytest.raises(Exception) as of_pytorch:  # noqa: PT011 - whatever PyTorch raises
        torch.compile(doubled, **options)
    with predict_syncs(), pytest.raises(of_pytorch.type) as predicted:
        torch.compile(doubled, **options)
    assert str(predicted.value) == str(of_pytorch.value)


def test_what_is_not_to_be_compiled_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert codes_of(lambda: torch.compile(doubled, disable=True)(cuda(4))) == ()
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")
    assert codes_of(lambda: torch.compile(doubled)(cuda(4))) == ()


@needs_inductor
@pytest.mark.parametrize("backend", ["eager", "aot_eager", lambda graph, _: graph.forward], ids=["eager", "aot", "own"])
def test_a_backend_that_runs_operators_has_its_graph_breaks_and_runs_uncompiled(backend: Any) -> None:
    def breaking(x: Tensor) -> Tensor:
        x = x.sin()
        torch._dynamo.graph_break()
        return x.cos()

    (code,) = codes_of(lambda: torch.compile(breaking, backend=backend)(cuda(4)))
    assert (code.graphs, code.kernels, code.unlowered, code.is_known) == (2, None, "backend", True)
    assert len(code.breaks) == 1


@needs_inductor
def test_the_backend_of_cuda_graphs_launches_the_operators_at_once() -> None:
    def program() -> None:
        x = cuda(8, 8).requires_grad_()
        torch.compile(lambda x: (x @ x).sin().cos(), backend="cudagraphs")(x).sum().backward()

    (code,) = codes_of(program)
    assert code.cuda_graphs
    assert code.kernels is not None
    assert [call.name for call in code.kernels.forward] == ["aten.mm.default", "aten.sin.default", "aten.cos.default"]
    assert sum(call.name == "aten.mm.default" for call in code.kernels.backward) == 2


@needs_inductor
def test_settings_of_the_process_and_the_older_way_to_compile_count() -> None:
    with torch._inductor.config.patch({"triton.cudagraphs": True}):
        (code,) = codes_of(lambda: torch._dynamo.optimize("inductor")(doubled)(cuda(4)))
    assert (code.cuda_graphs, launches_of(code)) == (True, (1, 0))


@needs_inductor
def test_the_program_s_stance_decides_what_is_compiled() -> None:
    def program() -> None:
        function = torch.compile(doubled, dynamic=False)
        with torch.compiler.set_stance("force_eager"):
            function(cuda(3))
        function(cuda(4))
        with torch.compiler.set_stance("eager_on_recompile"):
            function(cuda(5))
        with torch.compiler.set_stance("fail_on_recompile"):
            function(cuda(4))
            with pytest.raises(RuntimeError, match="fail_on_recompile"):
                function(cuda(6))
        torch.compiler.set_stance("force_eager")
        function(cuda(7))

    codes = codes_of(program)
    assert (len(codes), recompilations_of(codes)) == (1, 0)


@needs_inductor
@pytest.mark.parametrize(
    ("mark", "times"),
    [(torch._dynamo.mark_dynamic, 0), (torch._dynamo.maybe_mark_dynamic, 0), (torch._dynamo.mark_static, 2)],
    ids=["dynamic", "maybe", "static"],
)
def test_a_marked_size_is_dynamic_or_not_as_the_program_says(mark: Callable[[Tensor, int], None], times: int) -> None:
    layer = nn.Linear(16, 16, device="meta")

    def program() -> None:
        module = torch.compile(layer.to_empty(device="cuda"))
        for size in (4, 5, 6):
            x = cuda(size, 16)
            mark(x, 0)
            module(x)

    codes = codes_of(program)
    assert recompilations_of(codes) == times
    assert {(code.graphs + code.shares_graphs, launches_of(code)) for code in codes} == {(1, (1, 2))}


@dataclass
class _Output:
    loss: Tensor
    scale: float


class _Holder:
    """An object of the program that holds a module and a tensor."""

    def __init__(self) -> None:
        self.parts = {"layers": [nn.Linear(8, 8).cuda()], "shift": (cuda(8), 1.0)}

    def step(self, x: Tensor) -> Tensor:
        shift, factor = self.parts["shift"]
        out: Tensor = (self.parts["layers"][0](x) + shift) * factor
        return out


def _from_object() -> Tensor:
    holder = _Holder()
    loss: Tensor = torch.compile(holder.step)(cuda(4, 8)).sum()
    return loss


def _from_closure() -> Tensor:
    layers = [nn.Linear(8, 8).cuda()]
    shift = cuda(8)

    def inner(x: Tensor) -> Tensor:
        out: Tensor = layers[0](x) + shift
        return out

    loss: Tensor = torch.compile(lambda x: inner(x) * 2)(cuda(4, 8)).sum()
    return loss


def _from_data_class() -> Tensor:
    layer = nn.Linear(8, 8).cuda()
    output = torch.compile(lambda x: _Output(layer(x).sum(), 2.0))(cuda(4, 8))
    loss: Tensor = output.loss
    return loss


def _from_checkpoint() -> Tensor:
    layer = torch.compile(nn.Linear(8, 8).cuda())
    out = checkpoint(layer, cuda(4, 8).requires_grad_(), use_reentrant=False)
    assert isinstance(out, Tensor)
    return out.sum()


@needs_inductor
@pytest.mark.parametrize("program", [_from_object, _from_closure, _from_data_class, _from_checkpoint])
def test_tensors_are_found_where_the_program_holds_them(program: Callable[[], Tensor]) -> None:
    (code, *_) = codes_of(lambda: program().backward())
    forward, backward = launches_of(code)
    assert forward >= 1
    assert backward >= 2


@needs_inductor
def test_a_learning_rate_may_be_a_tensor_on_the_device() -> None:
    def program() -> None:
        weight = nn.Parameter(cuda(4))
        optimizer = torch.optim.SGD([weight], lr=torch.tensor(0.1, device="cuda"), foreach=True)
        weight.grad = cuda(4)
        torch.compile(lambda: optimizer.step())()

    (code,) = codes_of(program)
    assert launches_of(code)[0] >= 1
