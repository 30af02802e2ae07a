"""Rules on whether a trace can be relied on."""

from collections.abc import Iterator
from typing import Final

from steptrace.findings.model import WORDS, Match, Rule, rule
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
    for case, checks in _DEFECTS.items():
        said = tuple(failed[name] for name in checks if name in failed)
        if said:
            claim = WORDS["poor_trace"]["cases"][case]["claim"]
            yield Match(severity="warning", claim=claim, evidence=said, case=case)
    if _EMPTY in failed:
        claim = f"{failed[_EMPTY]}: figures a step are means with {_empty_steps(window)}"
        yield Match(severity="warning", claim=claim, evidence=(failed[_EMPTY],), case="empty_steps")


def _empty_steps(window: Window) -> str:
    """The steps in which the GPU did nothing, with their lengths."""
    named = [f"step {row.index} ({duration(row.dur_ns)})" for row in window.entry.steps if row.busy_ns == 0]
    return ", ".join(named[:3]) + (f" and {len(named) - 3} more" if len(named) > 3 else "") or "these"


_EMPTY: Final = "steps with GPU work"
#: The checks of each kind of defect. Other rules speak of other checks.
_DEFECTS: Final = {
    "launches_lost": ("GPU work linked to its launch",),
    "work_lost": ("launches with their GPU work",),
    "contradiction": ("GPU work after its launch", "one activity of a stream at a time"),
    "steps_lost": ("steps one after the other",),
}

QUALITY_RULES: Final[tuple[Rule[Window], ...]] = (
    rule("too_few_steps", _too_few_steps, {"few": FEW_STEPS}),
    rule("poor_trace", _poor_trace),
)
