"""What the labels of optimizers hold: by hand, and against a slow count over nested events."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from builders import TraceBuilder
from steptrace.analysis.optimizer import optimizer_calls

STEP, ZERO = "Optimizer.step#Adam.step", "Optimizer.zero_grad#Adam.zero_grad"


def calls_of(builder: TraceBuilder) -> dict[str, dict[str, Any]]:
    table = optimizer_calls(builder.trace())
    return {str(row["label"]): row for row in table.astype(object).to_dict("records")}


def single_tensor_step(builder: TraceBuilder, ts: int, parameters: int) -> None:
    builder.label(STEP, ts, 100_000)
    for k in range(parameters):
        at = ts + 1_000 + k * 10_000
        builder.op("aten::lerp_", at, 3_000)
        builder.op("aten::addcmul_", at + 4_000, 4_000)
        builder.op("aten::empty", at + 5_000, 1_000)  # called by the one before
        builder.kernel(at + 1_000, at + 2_000, 1_500, "lerp")
        builder.kernel(at + 6_500, at + 8_000, 1_500, "addcmul")


def test_an_update_parameter_by_parameter() -> None:
    builder = TraceBuilder()
    builder.step(0, 0, 400_000)
    single_tensor_step(builder, 10_000, parameters=4)
    single_tensor_step(builder, 210_000, parameters=4)
    row = calls_of(builder)[STEP]
    assert (row["method"], row["optimizer"], row["count"], row["host_ns"]) == ("step", "Adam", 2, 200_000)
    assert (row["operators"], row["foreach"], row["fused"]) == (16, 0, 0)
    assert (row["most_common"], row["most_common_count"]) == ("aten::addcmul_", 8)
    assert (row["kernels"], row["device_ns"]) == (16, 24_000)


def test_foreach_fused_and_zeroed_gradients() -> None:
    builder = TraceBuilder()
    builder.step(0, 0, 400_000)
    builder.label(ZERO, 1_000, 10_000)
    builder.op("aten::_foreach_zero_", 2_000, 5_000)
    builder.op("aten::zero_", 8_000, 1_000)
    builder.label(STEP, 20_000, 10_000)
    builder.op("aten::_foreach_addcmul_", 21_000, 2_000)
    builder.op("aten::_fused_adam_", 24_000, 2_000)
    builder.op("aten::zero_", 40_000, 1_000)  # outside
    calls = calls_of(builder)
    assert (calls[ZERO]["operators"], calls[ZERO]["zeroing"], calls[ZERO]["foreach"]) == (2, 2, 1)
    assert (calls[STEP]["operators"], calls[STEP]["foreach"], calls[STEP]["fused"]) == (2, 1, 1)
    assert calls[STEP]["kernels"] is None


def test_a_trace_without_optimizers() -> None:
    builder = TraceBuilder()
    builder.label("forward", 0, 1_000)
    assert len(optimizer_calls(builder.trace())) == 0


@given(st.data())
def test_operators_against_a_slow_count(data: st.DataObject) -> None:
    """Any nesting of labels and operators: an operator counts where its nearest labelled ancestor is, if direct."""
    builder = TraceBuilder()
    expected = {STEP: 0, ZERO: 0}

    def fill(start: int, end: int, holder: str | None, caller_in: bool, depth: int) -> None:  # noqa: FBT001
        for at in range(start, end - 999, 1_000 * 4**depth):
            kind = data.draw(st.sampled_from([STEP, ZERO, "other", "op", "none"]))
            stop = at + 1_000 * 4**depth - 100
            if kind == "op":
                builder.op("aten::mul", at, stop - at)
                if holder is not None and not caller_in:
                    expected[holder] += 1
            elif kind != "none":
                builder.label(kind, at, stop - at)
            if depth and kind != "none":
                inside = kind if kind in expected else holder
                changed = kind in expected
                fill(at + 100, stop, inside, (caller_in or kind == "op") and not changed, depth - 1)

    fill(0, 64_000, None, False, 2)
    builder.op("aten::add", 70_000, 100)  # outside of all labels: a trace of nothing is refused
    # What a label of the same name inside itself holds is the inner one's: nearest wins, and its callers are outside.
    table = optimizer_calls(builder.trace())
    assert dict(zip(table["label"], table["operators"], strict=True)) == {
        label: expected[label] for label in expected if label in set(table["label"])
    }


def test_what_lies_inside_a_closure_is_not_the_optimizers() -> None:
    builder = TraceBuilder()
    builder.step(0, 0, 400_000)
    builder.label(STEP, 10_000, 100_000)
    for k in range(20):  # forward of the closure
        builder.op("aten::addmm", 11_000 + k * 1_000, 500)
        builder.kernel(11_100 + k * 1_000, 11_200 + k * 1_000, 300, "gemm")
    builder.op("autograd::engine::evaluate_function: AddmmBackward0", 40_000, 30_000)
    builder.op("aten::mm", 45_000, 10_000)
    builder.op("aten::_fused_adamw_", 80_000, 5_000)
    builder.kernel(81_000, 82_000, 1_500, "adamw")
    row = calls_of(builder)[STEP]
    assert (row["count"], row["host_ns"], row["operators"], row["most_common"]) == (1, 40_000, 1, "aten::_fused_adamw_")
    assert (row["kernels"], row["device_ns"]) == (1, 1_500)
