"""The rule on a step that waits for its data."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from steptrace.analysis.input.measure import HIGH_SHARE, MODERATE_SHARE
from steptrace.findings.model import Match, Rule
from steptrace.findings.step_time import MORE_WORKERS, STEP_TIME_RULES
from steptrace.findings.trace.window import Window
from steptrace.format import duration
from steptrace.format import whole_percent as percent


def _input_bound(window: Window) -> Iterator[Match]:
    found = window.entry.input
    share, wait_ns, cost_ns = found.share, found.wait_ns, found.counted_ns
    if share is None or wait_ns is None or cost_ns is None or share < MODERATE_SHARE:
        return
    with_gpu = found.gpu_idle_wait_ns is not None
    waited = f"{duration(window.each(wait_ns))} {window.per} waiting for the loader's next batch"
    yield Match(
        severity="high" if share >= HIGH_SHARE else "warning",
        claim=f"{percent(share)} of the step is waiting for the data loader" + (", the GPU idle meanwhile" * with_gpu),
        evidence=(
            waited + (f", {duration(window.each(cost_ns))} of it with the GPU idle" if with_gpu else ""),
            *([f"{found.waits} waits in {window.steps} steps"] if window.steps and found.waits else []),
        ),
        cost_ns_per_step=window.each(cost_ns),
        cost_share=share,
    )


_OF_STUDIES: Final[Rule[Any]] = next(rule for rule in STEP_TIME_RULES if rule.name == "input_bound")

#: As the rule on studies, in words for any program.
INPUT_RULES: Final[tuple[Rule[Window], ...]] = (
    replace(
        _OF_STUDIES,
        find=_input_bound,
        advice=MORE_WORKERS,
        counter_check="Train for some steps on a few batches kept in memory: such a step is what a perfect loader "
        "would give. Workers gain nothing where there are no processors for them.",
    ),
)
