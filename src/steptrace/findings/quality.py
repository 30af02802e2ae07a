"""Rules on whether a trace can be relied on."""

from collections.abc import Iterator
from typing import Final

from steptrace.findings.model import Match, Rule, rule
from steptrace.findings.window import Window
from steptrace.format import duration

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
        else "the trace holds 1 step, which may be untypical"
        if window.steps == 1
        else f"the trace holds {window.steps} steps, which may be untypical",
        evidence=(f"labels ProfilerStep#N in the trace: {window.steps}",),
    )


def _poor_trace(window: Window) -> Iterator[Match]:
    """One match for each kind of defect, since each has a remedy of its own."""
    failed = {row.check: row.says for row in window.entry.quality.checks if row.warns}
    for claim, advice, *checks in _DEFECTS:
        evidence = tuple(failed[name] for name in checks if name in failed)
        if evidence:
            yield Match(severity="warning", claim=claim, evidence=evidence, advice=advice)
    if _EMPTY in failed:
        claim = f"{failed[_EMPTY]}: means per step include {_empty_steps(window)}"
        yield Match(severity="warning", claim=claim, evidence=(failed[_EMPTY],), advice=_LAST_STEP)


def _empty_steps(window: Window) -> str:
    """The steps in which the GPU did nothing, with their lengths."""
    named = [f"step {row.index} ({duration(row.dur_ns)})" for row in window.entry.steps if row.busy_ns == 0]
    return ", ".join(named[:3]) + (f" and {len(named) - 3} more" if len(named) > 3 else "") or "these"


_EMPTY: Final = "steps with GPU work"
_LAST_STEP: Final = "Stop the profiler right after the last step: its last step() call begins a step that stays empty."
#: Each kind of defect: the claim, the advice, and its checks. Other rules use other checks.
_DEFECTS: Final = (
    (
        "part of the GPU work has no launch in the trace: its operators, lines and causes of idle time are unknown",
        (
            "Wait for the GPU (`torch.cuda.synchronize()`) before the profiler starts, or let its schedule begin with "
            "warm-up steps. If work in the middle is concerned, record fewer steps at once."
        ),
        "GPU work linked to its launch",
    ),
    (
        "part of the GPU work is not in the trace: busy and compute time are too low",
        "Wait for the GPU (`torch.cuda.synchronize()`) before the profiler stops, and record fewer steps at once.",
        "launches with their GPU work",
    ),
    (
        "the trace contradicts itself: figures that depend on the order of host and GPU work are doubtful",
        "Record again; if it stays, with a newer PyTorch and driver.",
        "GPU work after its launch",
        "one activity of a stream at a time",
    ),
    (
        "steps are missing between those of the trace: it is not one continuous part of the training",
        "Record consecutive steps: a schedule's `active` steps, in one window.",
        "steps one after the other",
    ),
)

QUALITY_RULES: Final[tuple[Rule[Window], ...]] = (
    rule("too_few_steps", _too_few_steps, {"few": FEW_STEPS}),
    rule("poor_trace", _poor_trace),
)
