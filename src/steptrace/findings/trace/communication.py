"""Rules on collectives of one rank: what computation does not hide, and why.

Times include waiting for other ranks; who they wait for is a question to all ranks, which the last rule asks.
"""

from collections.abc import Iterator
from dataclasses import replace
from statistics import median
from typing import Final

from steptrace.analysis.input.measure import MODERATE_SHARE
from steptrace.documents.finding import Severity, Source
from steptrace.documents.summary import AllReduce, CollectiveName, Redundant, Summary
from steptrace.findings.model import Match, Rule
from steptrace.findings.trace.window import Window, window_of
from steptrace.format import duration, number, size_bytes
from steptrace.format import whole_percent as percent

#: Shares of a step in communication that nothing hides: moderate and high for the TensorFlow Profiler.
COMM_MODERATE, COMM_HIGH = 0.03, 0.15
#: Below this share hidden, communication and computation run one after the other.
HIDDEN_SHARE: Final = 0.10
#: Messages smaller than DDP's own first bucket, if a step has several of them.
SMALL_BYTES, SEVERAL = 2**20, 4
#: Redundant all-reduces below this share of a step are left alone (the default noise floor).
REDUNDANT_SHARE: Final = 0.01


def _exposed(window: Window) -> Iterator[Match]:
    exposed_ns = _exposed_ns(window)
    if exposed_ns is None or window.share(exposed_ns) < COMM_MODERATE:
        return
    rows = () if window.entry.collectives is None else window.entry.collectives.by_name
    yield Match(
        severity=_severity(window, exposed_ns),
        claim=f"for {percent(window.share(exposed_ns))} of the time the rank only communicates",
        evidence=(
            f"{duration(exposed_ns)} of {duration(window.step_ns)} {window.per} that no computation hides",
            *(_by_name(row, window) for row in sorted(rows, key=lambda row: -(row.exposed_ns or 0))[:3]),
        ),
        cost_ns_per_step=exposed_ns,
    )


def _missing_overlap(window: Window) -> Iterator[Match]:
    found, exposed_ns = window.entry.all_reduce, _exposed_all_reduce_ns(window)
    if found is None or exposed_ns is None or found.overlap is None or found.overlap >= HIDDEN_SHARE:
        return
    if window.share(exposed_ns) < COMM_MODERATE:
        return
    yield Match(
        severity=_severity(window, exposed_ns),
        claim=f"computation hides {percent(found.overlap)} of the all-reduces: "
        + ("they run after the backward pass instead of beside it" if _of_gradients(window) else _ONE_BY_ONE),
        evidence=(_measured(found, window), f"not hidden: {duration(exposed_ns)} {window.per}"),
        cost_ns_per_step=exposed_ns,
        advice=None if _of_gradients(window) else _OVERLAP_ADVICE,
    )


def _small_buckets(window: Window) -> Iterator[Match]:
    found, exposed_ns = window.entry.all_reduce, _exposed_all_reduce_ns(window)
    if found is None or exposed_ns is None or not found.bytes or not found.count:
        return
    mean, each = found.bytes / found.count, window.each(found.count)
    if mean >= SMALL_BYTES or each < SEVERAL or window.share(exposed_ns) < REDUNDANT_SHARE:
        return
    yield Match(
        severity=_severity(window, exposed_ns),
        claim=f"all-reduces are small: {number(each)} {window.per} of {size_bytes(mean)} on average",
        evidence=(_measured(found, window), f"not hidden: {duration(exposed_ns)} {window.per}"),
        cost_ns_per_step=exposed_ns,
        advice=None if _of_gradients(window) else _SMALL_ADVICE,
    )


def _redundant(window: Window) -> Iterator[Match]:
    found = window.entry.all_reduce_passes
    if found is None or not found.redundant.count:
        return
    extra = found.redundant
    measured_ns, exposed_ns = window.each(extra.measured_ns), _exposed_ns(window)
    cost_ns = measured_ns if exposed_ns is None else min(measured_ns, exposed_ns)
    if window.share(measured_ns) < REDUNDANT_SHARE:
        return
    yield Match(
        severity=_severity(window, cost_ns),
        claim=f"gradients are reduced in each of {number(found.passes_per_step)} passes of a step: only the last "
        "reduction is needed",
        evidence=(f"before the last pass {_measured(extra, window)}",),
        cost_ns_per_step=cost_ns,
    )


def _exposed_all_reduce_ns(window: Window) -> float | None:
    """What nothing hides of a step's all-reduces; None if that is not known."""
    found = window.entry.all_reduce
    return None if found is None or found.exposed_ns is None else window.each(found.exposed_ns)


def _of_gradients(window: Window) -> bool:
    """Whether DistributedDataParallel's own label says that it reduces here: its buckets can be set."""
    return window.entry.all_reduce_passes is not None


def _exposed_ns(window: Window) -> float | None:
    """What nothing hides: all collectives of the GPU, or the all-reduces of a host that reduces itself."""
    return window.parts["exposed_comm"] if window.parts else _exposed_all_reduce_ns(window)


def _severity(window: Window, ns: float) -> Severity:
    return "warning" if window.share(ns) >= COMM_HIGH else "info"


def _measured(found: AllReduce | Redundant, window: Window) -> str:
    size = f", {size_bytes(window.each(found.bytes))}" if found.bytes else ""
    count, measured_ns = window.each(found.count), window.each(found.measured_ns)
    return f"{number(count)} all-reduces {window.per}{size}, {duration(measured_ns)}"


def _by_name(row: CollectiveName, window: Window) -> str:
    return (
        f"{row.collective}: {number(window.each(row.count))} {window.per}, "
        f"{duration(window.each(row.exposed_ns or 0))} of {duration(window.each(row.sum_ns))} not hidden"
    )


_ONE_BY_ONE: Final = "the two run one after the other"
_OVERLAP_ADVICE: Final = (
    "If they average gradients, let DistributedDataParallel reduce them bucket by bucket during the backward pass. One "
    "whose result the next layer needs (tensor parallelism, batch statistics) cannot be hidden, only made shorter."
)
_SMALL_ADVICE: Final = (
    "If they average gradients, reduce many of them at once, as DistributedDataParallel's buckets do. Those between "
    "layers (tensor parallelism, batch statistics) are small by nature: fewer, or a collective made for small messages."
)

COMMUNICATION_RULES: Final[tuple[Rule[Window], ...]] = (
    Rule(
        name="exposed_communication",
        condition=f"communication that no computation hides takes at least {percent(COMM_MODERATE)} of the step",
        basis="the TensorFlow Profiler calls 3 % of device collectives moderate and 15 % high",
        advice="Send less (a bf16 compression hook, gradient accumulation under no_sync), or more per step (a larger "
        "batch); on several nodes look at the network first.",
        counter_check="Train on one rank: its step is what communication for free would give. A rank that waits for a "
        "slower one is no matter of the network: compare the ranks.",
        find=_exposed,
        study="all_reduce",
        explained_by=("redundant_all_reduce", "small_buckets", "missing_overlap"),
    ),
    Rule(
        name="missing_overlap",
        condition=f"computation hides less than {percent(HIDDEN_SHARE)} of the all-reduces, and they take at least "
        f"{percent(COMM_MODERATE)} of the step unhidden",
        basis="3 % as the TensorFlow Profiler's for collectives, 15 % high; 10 % is ours",
        advice="Let DistributedDataParallel reduce bucket by bucket during the backward pass: several buckets (a "
        "smaller bucket_cap_mb), no all-reduce of one's own after it.",
        counter_check="With one bucket, or where the first layers hold most parameters, nothing is left to compute "
        "while the last bucket is reduced.",
        find=_missing_overlap,
        study="all_reduce",
    ),
    Rule(
        name="small_buckets",
        condition=f"a step has at least {SEVERAL} all-reduces of less than {SMALL_BYTES // 2**20} MiB on average, and "
        f"they take at least {percent(REDUNDANT_SHARE)} of the step unhidden",
        basis="DistributedDataParallel's own first bucket is 1 MiB, the others 25 MiB; the number of 4 is ours",
        advice="Raise bucket_cap_mb, so that latency is paid once for more bytes.",
        counter_check="A larger bucket begins later: look whether the part that nothing hides gets smaller.",
        find=_small_buckets,
        study="all_reduce",
    ),
    Rule(
        name="redundant_all_reduce",
        condition="a step has several passes through DistributedDataParallel, gradients are reduced in more than the "
        f"last, and that takes at least {percent(REDUNDANT_SHARE)} of the step",
        basis="PyTorch's documentation of no_sync; 1 % is the default noise floor",
        advice="Wrap all passes but the last of a step in `model.no_sync()`.",
        counter_check="All-reduces of a step must drop to those of one pass, the gradients stay the same; those that "
        "computation hides cost nothing.",
        find=_redundant,
        study="all_reduce",
    ),
)


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
