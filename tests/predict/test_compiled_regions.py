"""Graphs inside of graphs, sizes that depend on values, and jagged tensors in compiled code."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from steptrace.documents.compiled import CompiledCode
from steptrace.predict import Prediction, captured, fake_fallback, predict_syncs
from steptrace.torch_names import release_of

pytestmark = pytest.mark.skipif(
    release_of(torch.__version__) < captured._OLDEST, reason="finding the kernels of compiled code takes PyTorch 2.13"
)


def code_of(program: Callable[[], object]) -> CompiledCode:
    with predict_syncs(follow_compiled=True) as syncs:
        program()
        (code,) = Prediction.so_far(syncs).compiled.codes
    return code


def names(code: CompiledCode) -> list[str]:
    assert code.kernels is not None, code.reason
    return [call.name for call in code.kernels.forward]


def test_a_region_that_is_compiled_once_counts_at_each_call() -> None:
    def program() -> None:
        layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(3)).cuda()

        @torch.compiler.nested_compile_region
        def block(layer: nn.Module, x: Tensor) -> Tensor:
            return torch.relu(layer(x))

        def total(x: Tensor) -> Tensor:
            for layer in layers:
                x = block(layer, x)
            return x.sum()

        torch.compile(total)(torch.ones(4, 16, device="cuda"))

    assert names(code_of(program)) == [*["aten.addmm.default", "inductor.pointwise"] * 3, "inductor.reduction"]


def test_a_graph_counts_as_often_as_it_runs_and_so_does_what_runs_between_graphs() -> None:
    """Dynamo leaves a loop with a graph break uncompiled, and compiles the functions that the loop calls."""

    @torch.compiler.disable
    def scaled(x: Tensor) -> Tensor:
        return x * 1.5

    def block(x: Tensor) -> Tensor:
        return torch.relu(x + 1) * 2

    def total(x: Tensor) -> Tensor:
        for _ in range(3):
            x = scaled(block(x))
        return x.sum()

    code = code_of(lambda: torch.compile(total)(torch.ones(4, device="cuda", requires_grad=True)).backward())
    assert names(code) == [*["inductor.pointwise", "aten.mul.Tensor"] * 3, "aten.sum.default"]
    assert code.kernels is not None
    # The gradient of the sum is a view.
    assert [call.name for call in code.kernels.backward] == ["aten.mul.Tensor", "inductor.pointwise"] * 3


def test_a_backward_pass_in_compiled_code_that_breaks_there_has_its_kernels() -> None:
    def program() -> None:
        layer = nn.Linear(8, 8).cuda()

        def step(x: Tensor) -> Tensor:
            loss = layer(x).square().sum()
            loss.backward()
            return loss

        torch.compile(step)(torch.ones(4, 8, device="cuda"))

    code = code_of(program)
    assert names(code)[-1] == "aten.ones_like.default"  # the gradient of the loss, which nothing compiles
    assert code.kernels is not None
    assert [call.name for call in code.kernels.backward if call.name.startswith("aten")] == ["aten.mm.default"]


def test_a_mask_in_one_graph_is_lowered() -> None:
    def program() -> None:
        with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
            torch.compile(lambda x: (x[x > 0] * 2).sum())(torch.ones(8, device="cuda"))

    code = code_of(program)
    assert (code.graphs, code.breaks) == (1, ())
    assert names(code) == ["inductor.pointwise", "aten.index.Tensor", "inductor.reduction"]


def test_jagged_tensors_are_followed_where_the_code_makes_them() -> None:
    def made() -> None:
        layer = nn.Linear(8, 8).cuda()
        offsets = torch.tensor([0, 3, 8], device="cuda")

        def mapped(values: Tensor) -> Tensor:
            jagged: Tensor = layer(torch.nested.nested_tensor_from_jagged(values, offsets))
            return jagged.values().relu()

        torch.compile(mapped)(torch.ones(8, 8, device="cuda"))

    def given() -> None:
        rows = [torch.ones(3, 8), torch.ones(5, 8)]
        torch.compile(lambda x: x * 2)(torch.nested.nested_tensor(rows, layout=torch.jagged, device="cuda"))

    assert names(code_of(made)) == ["aten.addmm.default", "inductor.pointwise"]
    code = code_of(given)
    assert code.unlowered == "not_followed"
    assert "a jagged tensor is an argument" in (code.reason or "")


def test_an_encoder_layer_in_inference_launches_the_kernels_of_its_fast_path() -> None:
    def program() -> None:
        layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True).to("cuda").eval()
        with torch.no_grad():
            torch.compile(layer)(torch.randn(2, 8, 64, device="cuda"))

    kernels = code_of(program).kernels
    assert kernels is not None
    assert [call.name.split(".")[1] for call in kernels.forward if not call.is_view] == [
        "addmm",
        "_scaled_dot_product_efficient_attention",
        "addmm",
        "add_",
        "native_layer_norm",
        "_addmm_activation",
        "addmm",
        "add_",
        "native_layer_norm",
    ]


def test_an_operator_that_the_cpu_would_run_on_large_tensors_is_not_followed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def program() -> None:
        torch.compile(lambda x: torch.geqrf(x)[0] + 1)(torch.ones(16, 16, device="cuda"))

    assert names(code_of(program)) == ["aten.geqrf.default", "inductor.pointwise"]

    monkeypatch.setattr(fake_fallback, "MOST_BYTES", 16 * 16 * 4 - 1)
    code = code_of(program)
    assert (code.kernels, code.unlowered) == (None, "not_followed")
    assert code.reason is not None
    assert code.reason.startswith("TooLargeError: aten.geqrf")
