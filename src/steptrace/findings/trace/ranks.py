"""The rule on ranks that wait for one of them."""

from collections.abc import Iterator
from dataclasses import replace
from statistics import median
from typing import Final

from steptrace.analysis.input.measure import MODERATE_SHARE
from steptrace.documents.finding import Source
from steptrace.documents.summary import Summary
from steptrace.findings.model import Match, Rule
from steptrace.findings.trace.window import window_of
from steptrace.format import duration
from steptrace.format import whole_percent as percent

#: A delay below this share of a step is left to the table (the default noise floor).
DELAY_SHARE: Final = 0.01


def _straggler(summary: Summary) -> Iterator[Match]:
    ranks = summary.ranks
    windows = [window_of(entry) for entry in summary.traces]
    step_ns = median(window.step_ns for window in windows) if windows else 0.0
    if ranks is None or ranks.straggler is None or not step_ns:
        return
    found = ranks.straggler
    delay_ns = windows[0].each(found.delay_ns)
    if delay_ns < DELAY_SHARE * step_ns:
        return
    stepped = all(window.steps for window in windows)
    match = Match(
        severity="warning" if delay_ns >= MODERATE_SHARE * step_ns else "info",
        claim=f"the other ranks wait for rank {found.rank}: it comes last by {duration(delay_ns)} "
        f"{windows[0].per}, and causes {percent(found.share)} of all waiting",
        evidence=(
            f"{duration(windows[0].each(found.caused_ns))} of other ranks' waiting {windows[0].per}, added up",
            *(
                f"rank {row.rank} waits {duration(windows[0].each(row.wait_ns))} {windows[0].per}"
                for row in ranks.waits
                if row.wait_ns and row.rank != found.rank
            ),
        ),
        cost_ns_per_step=min(delay_ns, step_ns),  # steps of two ranks can overlap by more than one step
        source=Source(rank=found.rank),
        cost_share=min(delay_ns / step_ns, 1.0),
    )
    yield match if stepped else replace(match, cost_ns_per_step=None)


STRAGGLER_RULES: Final[tuple[Rule[Summary], ...]] = (
    Rule(
        name="straggler",
        condition="one rank's share of all waiting caused in collectives is more than half way from an even share to "
        "all of it (three quarters with two ranks), by more than the clocks' noise, and it comes later than the "
        f"second-last by at least {percent(DELAY_SHARE)} of the step",
        basis="ours: the TensorFlow Profiler's test (modified z-score above 3.5) needs three hosts; 1 % is the default "
        "noise floor",
        advice="Compare that rank's trace with another's (steptrace diff): more data, a slower loader or GPU, work "
        "that only it does.",
        counter_check="Start the job on other nodes, or with the ranks swapped: a straggler that stays with the rank "
        "is the program's, one that stays with the machine is the machine's.",
        find=_straggler,
        study="all_reduce",
    ),
)
