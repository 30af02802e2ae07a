"""Operators of libraries and programs: their Python code is followed, and what nobody knows is a remark."""

import inspect

import pytest
import torch
from torch import Tensor

import steptrace
from steptrace.errors import PredictError
from steptrace.operator_costs import _formulas
from steptrace.predict import Prediction, SyncRule, predict_syncs

VALUES = torch.tensor([1.0, -2.0, 3.0])


@pytest.fixture
def library():
    made = torch.library.Library("steptrace_custom_test", "FRAGMENT")
    yield made
    made._destroy()


@torch.library.custom_op("steptrace_custom::positive_mean", mutates_args=())
def positive_mean(values: Tensor) -> Tensor:
    return values[values > 0].mean()


LINE = inspect.getsourcelines(positive_mean._init_fn)[1] + 2


@positive_mean.register_fake
def _(values: Tensor) -> Tensor:
    return values.new_empty(())


def _keep(ctx, inputs, output):  # noqa: ARG001 - torch's own
    ctx.save_for_backward(*inputs)


def _gradient(ctx, gradient):
    (values,) = ctx.saved_tensors
    picked = values > 0
    return gradient * picked / picked.sum()


positive_mean.register_autograd(_gradient, setup_context=_keep)


@torch.library.custom_op("steptrace_custom::double_", mutates_args={"values"}, device_types="cuda")
def double_(values: Tensor) -> None:
    values.mul_(torch.tensor(2.0, device=values.device))


@torch.library.custom_op("steptrace_custom::of_a_gpu", mutates_args=(), device_types="cuda")
def of_a_gpu(values: Tensor) -> Tensor:  # noqa: ARG001
    raise OSError("libcuda.so.1 is not there")


@of_a_gpu.register_fake
def _(values: Tensor) -> Tensor:
    return values.new_empty(values.shape[0], 2)


def test_what_an_operator_s_python_code_does_stands_at_its_lines():
    with predict_syncs() as syncs:
        values = VALUES.cuda().requires_grad_()
        syncs.reset()
        mean = positive_mean(values)
        mean.backward()
        assert values.grad.tolist() == [0.5, 0, 0.5]
    assert not syncs.unknown
    assert next((site.op, site.line, site.phase) for site in syncs.sites) == ("aten::index", LINE, "forward")


def test_an_operator_that_writes_to_its_argument_finds_the_device():
    with predict_syncs() as syncs:
        values = VALUES.cuda()
        syncs.reset()
        double_(values)
        total = syncs.total
        assert values.tolist() == [2, -4, 6]
    assert total == 1
    assert not syncs.unknown


def test_a_rule_goes_before_an_operator_s_code():
    rule = SyncRule("steptrace_custom::positive_mean", "stream", 3, "its source", "it waits")
    with predict_syncs([rule]) as syncs:
        values = VALUES.cuda()
        syncs.reset()
        positive_mean(values)
    assert [(site.reason, site.count) for site in syncs.sites] == [("it waits", 3)]


def test_code_that_needs_a_real_gpu_leaves_a_remark_and_its_shapes():
    with predict_syncs() as syncs:
        assert of_a_gpu(VALUES.cuda()).shape == (3, 2)
    assert [place.op for place in syncs.unknown] == ["steptrace_custom::of_a_gpu"]


def test_an_error_of_an_operator_s_code_is_the_program_s():
    with predict_syncs(), pytest.raises(RuntimeError, match="must match the size"):
        torch.library.custom_op(
            "steptrace_custom::wrong",
            lambda values: values + values[1:],
            mutates_args=(),
            schema="(Tensor v) -> Tensor",
        )(VALUES.cuda())


def test_an_implementation_in_a_library_is_followed(library):
    library.define("plus_one(Tensor values) -> Tensor")
    with predict_syncs() as syncs:
        torch.library.impl(library, "plus_one", "CUDA")(lambda values: values + torch.ones(1).to(values.device))
        values = VALUES.cuda()
        syncs.reset()
        result = torch.ops.steptrace_custom_test.plus_one(values)
        total = syncs.total
        assert result.tolist() == [2, -1, 4]
    assert total == 1
    assert not syncs.unknown


def test_an_operator_without_code_or_shapes_is_a_remark(library):
    library.define("unheard(Tensor values, int times) -> (Tensor, int, Tensor[])")
    with predict_syncs() as syncs:
        result, number, several = torch.ops.steptrace_custom_test.unheard(VALUES.cuda(), 2)
        assert result.shape == several[0].shape == VALUES.shape
        assert result.is_cuda
        assert number == 0
    assert {place.op for place in syncs.unknown} == {"steptrace_custom_test::unheard"}


@pytest.mark.parametrize("packet", ["mm", "bmm", "addmm", "baddbmm"])
@pytest.mark.parametrize("by_name", [True, False])
def test_a_product_with_a_type_for_its_result(packet, *, by_name):
    matrix = torch.linspace(-1, 1, 64).view(8, 8)
    first = matrix[None] if packet in ("bmm", "baddbmm") else matrix
    half = first.bfloat16()
    given = (first, half, half) if packet.endswith("addmm") or packet == "baddbmm" else (half, half)
    expected = getattr(torch, packet)(*(tensor.float() for tensor in given))
    dtype = {"out_dtype": torch.float32} if by_name else {}
    with predict_syncs() as syncs:
        on_device = [tensor.cuda() for tensor in given]
        syncs.reset()
        made = getattr(torch, packet)(*on_device, *([] if by_name else [torch.float32]), **dtype)
        assert not syncs.unknown
        assert not syncs.total
        assert torch.equal(made.cpu(), expected)
        (call,) = (call for call in syncs.operators if f"aten.{packet}" in call.name)
    assert call.flop == 2 * 8**3


def test_what_a_formula_of_operations_reads_is_no_sync():
    from torch.nn.attention.varlen import varlen_attn

    with predict_syncs() as syncs:
        tensors = [torch.ones(6, 2, 8, dtype=torch.bfloat16, device="cuda", requires_grad=True) for _ in range(3)]
        offsets = torch.tensor([0, 2, 6], dtype=torch.int32).pin_memory().to("cuda", non_blocking=True)
        syncs.reset()
        varlen_attn(*tensors, offsets, offsets, 4, 4).sum().backward()
        operations = {call.name: call.flop for call in syncs.operators}
    assert not syncs.total
    assert not syncs.unknown
    assert operations["aten._flash_attention_forward.default"] == 2 * 2 * 2 * 8 * (2 * 2 + 4 * 4)


def test_a_formula_of_the_program_that_fails_counts_nothing(library):
    library.define("thrice(Tensor values) -> Tensor")
    library.impl("thrice", lambda values: values * 3, "CompositeExplicitAutograd")

    def formula(*_: object, **__: object) -> int:
        raise ValueError("of no use")

    torch.utils.flop_counter.flop_registry[torch.ops.steptrace_custom_test.thrice] = formula
    try:
        with predict_syncs() as syncs:
            torch.ops.steptrace_custom_test.thrice(VALUES.cuda())
    finally:
        del torch.utils.flop_counter.flop_registry[torch.ops.steptrace_custom_test.thrice]
    assert [call.flop for call in syncs.operators if "thrice" in call.name] == [0]


@pytest.fixture
def weigh(library, monkeypatch):
    """An operator without code of its own, and no declared costs."""
    monkeypatch.setattr("steptrace.operator_costs._formulas", dict(_formulas))
    library.define("weigh(Tensor values, Tensor counts, int times=1) -> Tensor")
    library.impl("weigh", lambda values, *_, **__: values * 1, "CompositeExplicitAutograd")
    return torch.ops.steptrace_custom_test.weigh


def _followed(weigh, *, size=2**20, times=1):
    with predict_syncs() as syncs:
        values = torch.rand(size, device="cuda")
        counts = torch.tensor([1, 0, 1, 1]).cuda()
        syncs.reset()
        weigh(values, counts, times=times)
        return next(call for call in syncs.operators if "weigh" in call.name), syncs.total, syncs.estimate("H100")


def test_a_declared_cost_is_computed_of_each_call_without_a_sync(weigh):
    given = []

    @steptrace.operator_cost("steptrace_custom_test::weigh")
    def cost(values, counts, times=1):
        given.append((values.is_meta, type(counts) is Tensor))
        flop = times * values.numel() * int(counts.sum())
        return steptrace.OperatorCost(flop=flop, bytes=10, launches=2, arithmetic="float32")

    call, total, _ = _followed(weigh, times=5)
    assert (call.cost.flop, call.cost.bytes, call.cost.launches) == (5 * 3 * 2**20, 10, 2)
    assert not total
    assert given == [(True, True)]


def test_the_estimate_of_a_custom_operator_follows_its_declared_cost(weigh):
    *_, undeclared = _followed(weigh)
    steptrace.operator_cost("steptrace_custom_test::weigh")(
        lambda _values, _counts, times=1: steptrace.OperatorCost(flop=1e9 * times, arithmetic="float32")
    )
    *_, light = _followed(weigh)
    *_, heavy = _followed(weigh, times=1000)
    assert undeclared.gpu_ms[1] > 10 * undeclared.gpu_ms[0]
    assert light.gpu_ms[1] < heavy.gpu_ms[0]
    # 1 TFLOP at 100 % and at 5 % of the data sheet's 67 TFLOP/s.
    assert 1e3 / 67 < heavy.gpu_ms[0] < heavy.gpu_ms[1] < 20e3 / 67
    assert heavy.launches == 1
    assert heavy.mfu_pct is None


def test_a_formula_of_pytorch_s_gives_the_operations_where_no_cost_is_declared(weigh):
    registry = torch.utils.flop_counter.flop_registry
    registry[weigh] = lambda values, counts, times=1, **_: 10**12 * times  # noqa: ARG005 - the operator's arguments
    try:
        call, _, estimate = _followed(weigh, size=64)
    finally:
        del registry[weigh]
    assert (call.cost, call.flop) == (None, 10**12)
    assert estimate.gpu_ms[0] > 0.5e3 / 67
    assert estimate.mfu_pct is not None


@pytest.mark.parametrize("cost", [lambda *_, **__: 1 // 0, lambda *_, **__: 7])
def test_a_declared_cost_that_cannot_be_used_says_so(weigh, cost):
    steptrace.operator_cost("steptrace_custom_test::weigh")(cost)
    with pytest.raises(PredictError, match="steptrace_custom_test::weigh"):
        _followed(weigh)


@pytest.mark.parametrize("products", [True, False])
def test_both_settings_of_tf32_are_known(*, products):
    matmul = torch.backends.cuda.matmul
    convolutions = torch.backends.cudnn.conv
    before = matmul.fp32_precision, convolutions.fp32_precision
    try:
        matmul.fp32_precision = "tf32" if products else "ieee"
        convolutions.fp32_precision = "ieee" if products else "tf32"
        with predict_syncs() as syncs:
            prediction = Prediction.so_far(syncs)
        assert (prediction.tf32, prediction.tf32_convolutions) == (products, not products)
    finally:
        matmul.fp32_precision, convolutions.fp32_precision = before
