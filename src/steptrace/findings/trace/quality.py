"""Rules on whether a trace can be relied on."""

from collections.abc import Iterator
from typing import Final

from steptrace.findings.model import Match, Rule, rule
from steptrace.findings.trace.window import Window
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
        else "the trace holds 1 step: nothing tells whether it is like the others"
        if window.steps == 1
        else f"the trace holds {window.steps} steps: where they differ, nothing tells which is like the others",
        evidence=(f"annotations ProfilerStep#N in the trace: {window.steps}",),
    )


def _poor_trace(window: Window) -> Iterator[Match]:
    """One match for each kind of defect, since each has a remedy of its own."""
    failed = {row.check: row.says for row in window.entry.quality.checks if row.warns}
    for names, claim, advice in _DEFECTS:
        said = [failed[name] for name in names if name in failed]
        if said:
            yield Match(severity="warning", claim=claim, evidence=tuple(said), advice=advice)
    if _EMPTY in failed:
        yield Match(
            severity="warning",
            claim=f"{failed[_EMPTY]}: figures a step are means with {_empty_steps(window)}",
            evidence=(failed[_EMPTY],),
            advice="Stop the profiler with the last step: its step() ends one step and begins the next, "
            "which stays empty if nothing follows (a schedule with active=N stops by itself).",
            counter_check="Multiply figures a step by all steps and divide by those with work.",
        )


def _empty_steps(window: Window) -> str:
    """The steps in which the GPU did nothing, with their lengths."""
    named = [f"step {row.index} ({duration(row.dur_ns)})" for row in window.entry.steps if row.busy_ns == 0]
    return ", ".join(named[:3]) + (f" and {len(named) - 3} more" if len(named) > 3 else "") or "these"


_EMPTY: Final = "steps with GPU work"
#: The checks of a kind of defect, what it means, and what to do about it. Other rules speak of other checks.
_DEFECTS: Final = (
    (
        ("GPU work linked to its launch",),
        "part of the GPU work has no launch in the trace: its operators, lines and causes of idle time are unknown",
        (
            "Work that was queued before the profiler started comes without its launch: wait for the GPU "
            "(`torch.cuda.synchronize()`) before the profiler starts, or let its schedule begin with warm-up steps. If "
            "work in the middle is concerned, record fewer steps at once."
        ),
    ),
    (
        ("launches with their GPU work",),
        "part of the GPU work is not in the trace: busy and compute time are too low",
        (
            "Let the profiler wait for the GPU (`torch.cuda.synchronize()`) before it stops, and record fewer steps "
            "at once."
        ),
    ),
    (
        ("GPU work after its launch", "one activity of a stream at a time"),
        "the trace contradicts itself: what rests on the order of host and GPU work is doubtful",
        "Record again; if it stays, with a newer PyTorch and driver.",
    ),
    (
        ("steps one after the other",),
        "steps are missing between those of the trace: it is no stretch of the training in one piece",
        "Record consecutive steps: a schedule's `active` steps, in one window.",
    ),
)

QUALITY_RULES: Final[tuple[Rule[Window], ...]] = (
    rule("too_few_steps", _too_few_steps, {"few": FEW_STEPS}),
    rule("poor_trace", _poor_trace),
)
