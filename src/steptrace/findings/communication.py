"""Rules on collectives of one rank: what computation does not hide, and why.

Times include waiting for other ranks; who they wait for is a question to all ranks, which the last rule asks.
"""

from collections.abc import Iterator
from dataclasses import replace
from statistics import median
from typing import Final

from steptrace.documents.communication import AllReduce, CollectiveName
from steptrace.documents.finding import Source
from steptrace.documents.summary import Summary
from steptrace.findings.rule import WORDS, Match, Rule, Window, rule, window_of
from steptrace.format import count, duration, plural, size_bytes
from steptrace.format import share as percent
from steptrace.limits import MODERATE_SHARE, NOISE_FLOOR, OVERHEAD_HIGH, OVERHEAD_MODERATE

#: Below this share hidden, communication and computation run one after the other.
HIDDEN_SHARE: Final = 0.10
#: Messages smaller than DDP's own first bucket, if a step has several of them.
SMALL_BYTES, SEVERAL = 2**20, 4


def _exposed(window: Window) -> Iterator[Match]:
    # All collectives of the GPU, or the all-reduces of a host that reduces itself.
    exposed_ns = window.parts["exposed_comm"] if window.parts else _exposed_all_reduce_ns(window)
    if exposed_ns is None or window.share(exposed_ns) < OVERHEAD_MODERATE:
        return
    rows = () if window.entry.collectives is None else window.entry.collectives.by_name
    reduces = window.entry.all_reduce
    yield Match(
        severity="warning" if window.share(exposed_ns) >= OVERHEAD_HIGH else "info",
        claim=f"communication that no computation hides takes {percent(window.share(exposed_ns))} of the time",
        evidence=(
            f"{duration(exposed_ns)} of {duration(window.step_ns)} {window.per} that no computation hides",
            *(_by_name(row, window) for row in sorted(rows, key=lambda row: -(row.exposed_ns or 0))[:3]),
            *([] if reduces is None else [_measured(reduces, window)]),
        ),
        cost_ns_per_step=exposed_ns,
        advice=" ".join(_of_all_reduces(window, exposed_ns)) or None,
    )


def _of_all_reduces(window: Window, exposed_ns: float) -> Iterator[str]:
    """The advice where all-reduces make most of it: small ones, and such as run after the computation."""
    reduces, own_ns = window.entry.all_reduce, _exposed_all_reduce_ns(window)
    if reduces is None or own_ns is None or own_ns < exposed_ns / 2:
        return
    small = reduces.bytes is not None and reduces.bytes < SMALL_BYTES * reduces.count
    if small and window.per_step(reduces.count) >= SEVERAL:
        yield _SMALL
    if reduces.overlap is not None and reduces.overlap < HIDDEN_SHARE:
        yield _NOT_HIDDEN


_SMALL: Final = (
    "The all-reduces are small: if they average gradients, raise bucket_cap_mb, so that latency is paid once."
)
_NOT_HIDDEN: Final = (
    "The all-reduces run after the computation instead of beside it: if they average gradients, let "
    "DistributedDataParallel reduce them bucket by bucket during the backward pass, with no all-reduce of your own "
    "after it. With one bucket nothing is left to compute while it is reduced."
)


def _exposed_all_reduce_ns(window: Window) -> float | None:
    """A step's exposed all-reduce time in ns; None if unknown."""
    all_reduce = window.entry.all_reduce
    return None if all_reduce is None or all_reduce.exposed_ns is None else window.per_step(all_reduce.exposed_ns)


def _measured(reduces: AllReduce, window: Window) -> str:
    size = f", {size_bytes(window.per_step(reduces.bytes))}" if reduces.bytes else ""
    each, measured_ns = window.per_step(reduces.count), window.per_step(reduces.measured_ns)
    hidden = "" if reduces.overlap is None else f"; computation hides {percent(reduces.overlap)}"
    return f"{plural(round(each, 2), 'all-reduce')} {window.per}{size}, {duration(measured_ns)}{hidden}"


def _by_name(row: CollectiveName, window: Window) -> str:
    return (
        f"{row.collective}: {count(window.per_step(row.count))} {window.per}, "
        f"{duration(window.per_step(row.exposed_ns or 0))} of {duration(window.per_step(row.sum_ns))} not hidden"
    )


COMMUNICATION_RULES: Final[tuple[Rule[Window], ...]] = (
    rule(
        "exposed_communication",
        _exposed,
        {"least": OVERHEAD_MODERATE, "mib": SMALL_BYTES // 2**20, "several": SEVERAL, "hidden": HIDDEN_SHARE},
    ),
)


def _straggler(summary: Summary) -> Iterator[Match]:
    ranks = summary.ranks
    windows = [window_of(entry) for entry in summary.traces]
    step_ns = median(window.step_ns for window in windows) if windows else 0.0
    if ranks is None or ranks.straggler is None or ranks.straggler.rank is None or not step_ns:
        return
    straggler = ranks.straggler
    delay_ns = windows[0].per_step(straggler.delay_ns)
    if delay_ns < NOISE_FLOOR * step_ns:
        return
    stepped = all(window.steps for window in windows)
    # Steps of two ranks can overlap by more than one step.
    cost_ns, share = windows[0].bounded(min(delay_ns, step_ns), min(delay_ns / step_ns, 1.0))
    match = Match(
        severity="warning" if delay_ns >= MODERATE_SHARE * step_ns else "info",
        claim=f"the other ranks wait for rank {straggler.rank}: it comes last by {duration(delay_ns)} "
        f"{windows[0].per}, and causes {percent(straggler.share)} of all waiting",
        evidence=(
            f"{duration(windows[0].per_step(straggler.caused_ns))} of other ranks' waiting {windows[0].per}, added up",
            *(
                f"rank {row.rank} waits {duration(windows[0].per_step(row.wait_ns))} {windows[0].per}"
                for row in ranks.waits
                if row.wait_ns and row.rank != straggler.rank
            ),
        ),
        cost_ns_per_step=cost_ns,
        source=Source(rank=straggler.rank),
        advice=WORDS["straggler"]["advice"].replace("that rank's", f"rank {straggler.rank}'s"),
        cost_share=share,
    )
    yield match if stepped else replace(match, cost_ns_per_step=None)


STRAGGLER_RULES: Final[tuple[Rule[Summary], ...]] = (rule("straggler", _straggler, {"least": NOISE_FLOOR}),)
