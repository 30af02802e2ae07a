"""Rules on the optimizer: updates one parameter after the other, gradients set to zero."""

from collections.abc import Iterator
from typing import Final

from steptrace.analysis.input.measure import MODERATE_SHARE
from steptrace.documents.rows import OptimizerCall
from steptrace.findings.model import Match, Rule
from steptrace.findings.trace.window import Window
from steptrace.format import duration, number
from steptrace.format import whole_percent as percent

#: From so many calls of one operator in a step on, an update goes through the parameters one by one.
ONE_BY_ONE: Final = 10
#: Updates below this share of a step are left alone (the default noise floor). On a CPU, where PyTorch does the same by
#: itself and no launches are saved, those below a moderate one.
UPDATE_SHARE: Final = 0.01
#: Classes of torch.optim that take `fused=`, and those that take `foreach=` alone.
FUSED: Final = ("Adagrad", "Adam", "AdamW", "SGD")
FOREACH: Final = ("ASGD", "Adadelta", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop")


def _single_tensor(window: Window) -> Iterator[Match]:
    for row in _calls(window, "step"):
        each = row.most_common_count / row.count if row.count else 0.0
        cost_ns = _ceiling(window, row)
        together = row.foreach + row.fused > 0 or "fused" in row.optimizer.lower()
        # Operators on the host alone (step counters) are no update of parameters on the GPU.
        elsewhere = row.kernels is not None and row.kernels < row.most_common_count
        least = MODERATE_SHARE if row.kernels is None else UPDATE_SHARE
        if together or elsewhere or each < ONE_BY_ONE or window.share(cost_ns) < least:
            continue
        evidence = [f"{row.most_common} is called {number(each)} times in each {row.label}"]
        if row.kernels is not None:
            evidence.append(f"{number(row.kernels / row.count)} kernels in each")
        if row.single_tensor:
            evidence.append("the Python frames are those of PyTorch's single-tensor implementation")
        yield Match(
            severity="warning" if window.share(cost_ns) >= MODERATE_SHARE else "info",
            claim=f"{row.optimizer} updates the parameters one after the other: "
            f"{number(row.operators / row.count)} operators each time, {duration(window.each(row.host_ns))} "
            f"of the host's time {window.per}",
            evidence=tuple(evidence),
            cost_ns_per_step=cost_ns,
            advice=_advice(row.optimizer),
        )


def _advice(optimizer: str) -> str | None:
    """What an optimizer of this class takes; None, for the rule's own advice, where it takes either."""
    if optimizer in FUSED:
        return None
    if optimizer in FOREACH:
        return "Pass `foreach=True` to the optimizer: a few launches update all parameters."
    return (
        "Update all parameters together, with the operators torch._foreach_*, or take an optimizer of torch.optim that "
        "does (`foreach=True`, or `fused=True`): a few launches update all of them."
    )


def _zeroed_gradients(window: Window) -> Iterator[Match]:
    for row in _calls(window, "zero_grad"):
        if row.zeroing == 0:
            continue
        cost_ns = _ceiling(window, row)
        yield Match(
            severity="warning" if window.share(cost_ns) >= MODERATE_SHARE else "info",
            claim=f"gradients are set to zero instead of being dropped: "
            f"{number(row.zeroing / max(row.count, 1))} operators in each {row.label}",
            evidence=(
                f"{duration(window.each(row.host_ns))} of the host's time {window.per}",
                *([f"GPU busy {duration(window.each(row.device_ns))} with it"] if row.device_ns is not None else []),
                "the next backward pass adds to the zeros, where it could write",
            ),
            cost_ns_per_step=cost_ns,
        )


def _calls(window: Window, method: str) -> list[OptimizerCall]:
    return [row for row in window.entry.optimizer or () if row.method == method]


def _ceiling(window: Window, row: OptimizerCall) -> float:
    """All of it: on a GPU its own work, and as much of the idle time as the host was busy with it; else host time."""
    host_ns = window.each(row.host_ns)
    if row.device_ns is None or window.idle_ns is None:
        return host_ns
    return window.each(row.device_ns) + min(host_ns, window.idle_ns)


OPTIMIZER_RULES: Final[tuple[Rule[Window], ...]] = (
    Rule(
        name="single_tensor_optimizer",
        condition=f"in each call of Optimizer.step one operator runs at least {ONE_BY_ONE} times (on a GPU with as "
        f"many kernels), none of them foreach or fused, and that takes at least {percent(UPDATE_SHARE)} of the step "
        f"(without a GPU {percent(MODERATE_SHARE)})",
        basis="TorchTidy (torch.profiler's pattern OptimizerSingleTensor) names the frames _single_tensor_*; the "
        "figures are ours, so that traces without frames tell too",
        advice="Pass `fused=True` to the optimizer (or `foreach=True`): a few launches update all parameters.",
        counter_check="With few large parameters the update is bound by memory, and launches cost nothing: look "
        "whether the step gets shorter. foreach needs memory for its intermediate results.",
        find=_single_tensor,
        study="precision",
    ),
    Rule(
        name="gradients_zeroed",
        condition="an Optimizer.zero_grad calls zero_ or _foreach_zero_",
        basis="TorchTidy (torch.profiler's pattern GradNotSetToNone)",
        advice="Call `zero_grad(set_to_none=True)`, PyTorch's default: the gradients' memory is free during the "
        "forward pass, and the backward pass writes instead of adding.",
        counter_check="A captured CUDA graph, or code that reads .grad between the steps, needs gradients that stay.",
        find=_zeroed_gradients,
        study="memory",
    ),
)
