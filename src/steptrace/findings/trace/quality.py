"""Rules on whether a trace can be relied on."""

from collections.abc import Iterator
from typing import Final

from steptrace.findings.model import Match, Rule
from steptrace.findings.trace.window import Window, on_trace

#: Fewer profiled steps than this tell nothing of how steps differ.
FEW_STEPS: Final = 3


def _too_few_steps(window: Window) -> Iterator[Match]:
    if window.steps >= FEW_STEPS:
        return
    none = window.steps == 0
    yield Match(
        severity="info",
        claim="the trace marks no steps: every figure is of the whole trace, start-up and waiting included"
        if none
        else f"the trace holds {window.steps} step{'s' if window.steps > 1 else ''}: a single slow one decides",
        evidence=(f"annotations ProfilerStep#N in the trace: {window.steps}",),
    )


def _poor_trace(window: Window) -> Iterator[Match]:
    checks = (window.entry.get("quality") or {}).get("checks") or ()
    failed = [row["says"] for row in checks if row["warns"] and row["check"] not in _NOT_POOR]
    if failed:
        yield Match(
            severity="warning",
            claim="the trace is incomplete or contradicts itself: figures that rest on the part concerned are doubtful",
            evidence=tuple(failed),
        )


#: What another rule says, or what is no defect.
_NOT_POOR: Final = ("steps marked", "GPU work recorded", "one GPU")

QUALITY_RULES: Final[tuple[Rule, ...]] = (
    Rule(
        name="too_few_steps",
        condition=f"the trace marks fewer than {FEW_STEPS} steps",
        basis="ours: of two that differ, neither can be told to be the exception",
        advice="Profile at least three steps after warm-up, each marked by the profiler's step().",
        counter_check="Profile twice: figures that agree are not the exception.",
        find=on_trace(_too_few_steps),
    ),
    Rule(
        name="poor_trace",
        condition="a check of the trace's quality fails: lost GPU work, launches unknown, clocks or streams that "
        "contradict each other, steps missing",
        basis="ours: more than 5 % of GPU work without a launch, more than 1 % of launches without their work, or "
        "clocks apart by more than 2 µs",
        advice="Record fewer steps at once, and let the profiler wait for the GPU before it stops.",
        counter_check="Figures that do not rest on launches (busy, idle, kernels) hold all the same.",
        find=on_trace(_poor_trace),
    ),
)
