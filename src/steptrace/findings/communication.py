"""Rules on collectives: transfer that computation does not hide, and ranks that wait for each other.

A collective's time on a rank is waiting for other ranks, and transfer. Where the traces of several ranks were read
together the two are known, and only transfer is traffic. The first rule looks at one rank's transfer, the others at the
waiting of all ranks.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from statistics import mean, median
from typing import Final

from steptrace.documents.communication import AllReduce, CollectiveName
from steptrace.documents.finding import Source
from steptrace.documents.ranks import Ranks
from steptrace.documents.summary import Summary
from steptrace.findings.rule import WORDS, Match, Rule, Window, rule, window_of
from steptrace.format import bandwidth, count, duration, plural, size_bytes
from steptrace.format import share as percent
from steptrace.limits import MODERATE_SHARE, NOISE_FLOOR, OVERHEAD_HIGH, OVERHEAD_MODERATE

#: Below this share hidden, communication and computation run one after the other.
HIDDEN_SHARE: Final = 0.10
#: Messages smaller than DDP's own first bucket, if a step has several of them.
SMALL_BYTES, SEVERAL = 2**20, 4


@dataclass(frozen=True)
class _Exposed:
    """Communication of a step that no computation hides, in ns.

    `wait_ns` is the part of it that is waiting for other ranks; None where only one rank's trace was read.
    """

    all_ns: float
    wait_ns: float | None

    @property
    def transfer_ns(self) -> float:
        """Without the waiting; an upper bound where that is not known."""
        return self.all_ns - (self.wait_ns or 0.0)


def _exposed_in(window: Window) -> _Exposed | None:
    """Of all collectives of the GPU, or of the all-reduces of a host that reduces itself; None if unknown."""
    entry = window.entry
    if window.parts:
        wait_ns = None if entry.overview is None else entry.overview.exposed_wait_ns
        return _Exposed(window.parts["exposed_comm"], None if wait_ns is None else window.per_step(wait_ns))
    reduces = entry.all_reduce
    if reduces is None or reduces.exposed_ns is None:
        return None
    wait_ns = reduces.exposed_wait_ns
    return _Exposed(window.per_step(reduces.exposed_ns), None if wait_ns is None else window.per_step(wait_ns))


def _exposed(window: Window) -> Iterator[Match]:
    exposed = _exposed_in(window)
    if exposed is None or window.share(exposed.transfer_ns) < OVERHEAD_MODERATE:
        return
    rows = () if window.entry.collectives is None else window.entry.collectives.by_name
    reduces = window.entry.all_reduce
    share = percent(window.share(exposed.transfer_ns))
    included = ", waiting for other ranks included" if exposed.wait_ns is None else ", without waiting for other ranks"
    length = f"{duration(exposed.transfer_ns)} of {duration(window.step_ns)} {window.per} that no computation hides"
    yield Match(
        severity="warning" if window.share(exposed.transfer_ns) >= OVERHEAD_HIGH else "info",
        claim=f"communication that no computation hides takes {share} of the time"
        + ("" if exposed.wait_ns is None else included),
        evidence=(
            length + included,
            *([f"waiting for other ranks: {duration(exposed.wait_ns)} {window.per}"] if exposed.wait_ns else []),
            *(_by_name(row, window) for row in sorted(rows, key=lambda row: -_exposed_transfer_ns(row))[:3]),
            *([] if reduces is None else [_measured(reduces, window)]),
        ),
        cost_ns_per_step=exposed.transfer_ns,
        advice=_advice(window, rows),
    )


def _exposed_transfer_ns(row: CollectiveName) -> int:
    """The exposed time of a name's collectives, without waiting where that is known; 0 where nothing is."""
    return (row.exposed_ns if row.exposed_transfer_ns is None else row.exposed_transfer_ns) or 0


def _dominating(rows: tuple[CollectiveName, ...]) -> str | None:
    """The collective with the most exposed transfer, over all its process groups; None without any."""
    by_collective = defaultdict[str, int](int)
    for row in rows:
        by_collective[row.collective] += _exposed_transfer_ns(row)
    most = max(by_collective, key=lambda name: by_collective[name], default=None)
    return most if most is not None and by_collective[most] else None


def _advice(window: Window, rows: tuple[CollectiveName, ...]) -> str | None:
    """What to do about the collective that takes most; None, for the general advice, if nothing is known of it."""
    dominating = _dominating(rows)
    if dominating == "all_reduce":
        return " ".join(_of_all_reduces(window)) or _ADVICE[dominating]
    return _ADVICE.get(_SAME_ADVICE.get(dominating or "", dominating or ""))


def _of_all_reduces(window: Window) -> Iterator[str]:
    """The advice on small all-reduces, and on those that run after the computation."""
    reduces = window.entry.all_reduce
    if reduces is None:
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
_SHARDED: Final = (
    "If they belong to sharded parameters (FSDP, ZeRO): gather the next layer's parameters while this one computes "
    "(prefetching is on by default in `fully_shard` and needs layers wrapped one by one), gather and reduce in bf16 "
    "(`MixedPrecisionPolicy`), keep parameters gathered between forward and backward pass where memory allows it "
    "(`reshard_after_forward=False`), and shard within a node only (a 2-D device mesh). A larger batch gives each "
    "gather more computation to hide behind."
)
#: What to do, by the collective that takes most.
_ADVICE: Final[Mapping[str, str]] = {
    "all_reduce": "Send fewer bytes (for gradients a bf16 compression hook of DistributedDataParallel, or gradient "
    "accumulation under no_sync), or reduce less often per sample (a larger batch); on several nodes look at the "
    "network first.",
    "all_gather": _SHARDED,
    "reduce_scatter": _SHARDED,
    "all_to_all": "An all-to-all takes as long as its largest part: give each rank the same share (experts with a "
    "capacity or a balancing loss, embedding tables placed by their traffic). Keep it within a node where the model "
    "allows that, and let other work run beside it: split the batch in two, and exchange one half while the other "
    "computes.",
    "broadcast": "Find out what is broadcast in each step: DistributedDataParallel sends buffers before each forward "
    "pass, which `broadcast_buffers=False` ends where ranks need not share them. Send many small tensors as one.",
    "send_recv": "Between stages of a pipeline: use more and smaller micro-batches, or a schedule that sends while it "
    "computes (1F1B, interleaved), and stages of equal length.",
    "barrier": "Leave the barrier out of the step: collectives need none before or after them.",
}
#: A send and a receive that PyTorch records each by itself are one exchange.
_SAME_ADVICE: Final[Mapping[str, str]] = {"send": "send_recv", "recv": "send_recv"}


def _measured(reduces: AllReduce, window: Window) -> str:
    size = f", {size_bytes(window.per_step(reduces.bytes))}" if reduces.bytes else ""
    each, measured_ns = window.per_step(reduces.count), window.per_step(reduces.measured_ns)
    hidden = "" if reduces.overlap is None else f"; computation hides {percent(reduces.overlap)}"
    return f"{plural(round(each, 2), 'all-reduce')} {window.per}{size}, {duration(measured_ns)}{hidden}"


def _by_name(row: CollectiveName, window: Window) -> str:
    """A name's collectives: how many, how long, and their bus bandwidth, with and without waiting."""
    text = f"{row.collective}: {count(window.per_step(row.count))} {window.per}, "
    if row.transfer_ns is None or row.wait_ns is None:
        text += (
            f"{duration(window.per_step(row.exposed_ns or 0))} of {duration(window.per_step(row.sum_ns))} not hidden"
        )
        rate = row.bus_bytes_per_s
        return text if rate is None else f"{text}; bus bandwidth {bandwidth(rate)}, waiting included"
    text += f"{duration(window.per_step(row.transfer_ns))} of transfer"
    if row.exposed_transfer_ns is not None:
        text += f", {duration(window.per_step(row.exposed_transfer_ns))} of it not hidden"
    if row.matched:
        text += f", after {duration(window.per_step(row.wait_ns))} of waiting" if row.wait_ns else ", no waiting"
        text += f" (known of {count(row.matched)} of {count(row.count)})" if row.matched < row.count else ""
    if row.bus_bytes_per_s is None or row.transfer_bus_bytes_per_s is None:
        return text
    return (
        f"{text}; bus bandwidth {bandwidth(row.transfer_bus_bytes_per_s)}, "
        f"with the waiting {bandwidth(row.bus_bytes_per_s)}"
    )


COMMUNICATION_RULES: Final[tuple[Rule[Window], ...]] = (
    rule(
        "exposed_communication",
        _exposed,
        {"least": OVERHEAD_MODERATE, "mib": SMALL_BYTES // 2**20, "several": SEVERAL, "hidden": HIDDEN_SHARE},
    ),
)


def _most_exposed_wait_ns(windows: list[Window], *, without: int | None) -> float | None:
    """The longest exposed waiting of a rank in a step, one rank left out; None where it is not known."""
    waits = [
        exposed.wait_ns
        for window in windows
        if window.entry.rank is None or window.entry.rank != without
        if (exposed := _exposed_in(window)) is not None and exposed.wait_ns is not None
    ]
    return max(waits, default=None)


def _straggler(summary: Summary) -> Iterator[Match]:
    ranks = summary.ranks
    windows = [window_of(entry) for entry in summary.traces]
    step_ns = median(window.step_ns for window in windows) if windows else 0.0
    if ranks is None or ranks.straggler is None or ranks.straggler.rank is None or not step_ns:
        return
    straggler = ranks.straggler
    late_ns = delay_ns = windows[0].per_step(straggler.delay_ns)
    stepped = all(window.steps for window in windows)
    # A rank that computes while its collective waits loses nothing; steps of two ranks can overlap by more than one.
    exposed_ns = _most_exposed_wait_ns(windows, without=straggler.rank)
    delay_ns = delay_ns if exposed_ns is None else min(delay_ns, exposed_ns)
    if delay_ns < NOISE_FLOOR * step_ns:
        return
    cost_ns, share = windows[0].bounded(min(delay_ns, step_ns), min(delay_ns / step_ns, 1.0))
    match = Match(
        severity="warning" if delay_ns >= MODERATE_SHARE * step_ns else "info",
        claim=f"the other ranks wait for rank {straggler.rank}: it comes last by {duration(late_ns)} "
        f"{windows[0].per}, and causes {percent(straggler.share)} of all waiting",
        evidence=(
            f"{duration(windows[0].per_step(straggler.caused_ns))} of other ranks' waiting {windows[0].per}, added up",
            *(
                f"rank {row.rank} waits {duration(windows[0].per_step(row.wait_ns))} {windows[0].per}"
                for row in ranks.waits
                if row.wait_ns and row.rank != straggler.rank
            ),
            *_longer_kernels(ranks, straggler.rank),
        ),
        cost_ns_per_step=cost_ns,
        source=Source(rank=straggler.rank),
        advice=WORDS["straggler"]["advice"].format(rank=f"rank {straggler.rank}"),
        cost_share=share,
    )
    yield match if stepped else replace(match, cost_ns_per_step=None)


#: A rank's kernel that takes this many times as long as on the median rank may be why it is late.
_LONGER: Final = 1.1


def _longer_kernels(ranks: Ranks, rank: int | None) -> list[str]:
    """The kernels that take longest on this rank, and clearly longer than on the median one; most time first."""
    rows = [
        row
        for row in ranks.kernels
        if row.class_ != "comm" and row.slowest_rank == rank and row.mean_max_ns >= _LONGER * row.mean_median_ns
    ]
    rows.sort(key=lambda row: -(row.mean_max_ns - row.mean_median_ns) * row.count)
    return [
        f"`{row.short_name}` takes {duration(row.mean_max_ns)} on rank {rank}, {duration(row.mean_median_ns)} on the "
        "median rank"
        for row in rows[:_MOST_KERNELS]
    ]


#: So many of them are named.
_MOST_KERNELS: Final = 3


def _uneven(summary: Summary) -> Iterator[Match]:
    """Ranks that wait for each other, where that is no single rank's doing."""
    ranks = summary.ranks
    windows = [window_of(entry) for entry in summary.traces]
    step_ns = median(window.step_ns for window in windows) if windows else 0.0
    exposed_ns = _most_exposed_wait_ns(windows, without=None)
    if ranks is None or exposed_ns is None or not step_ns or _is_noise(ranks):
        return
    per_step, waited = windows[0].per_step, [row for row in ranks.waits if row.wait_ns is not None and row.matched]
    # With the work shared out evenly each rank would come at the mean of the ranks' arrivals.
    mean_ns = per_step(mean(row.wait_ns or 0 for row in waited)) if waited else 0.0
    cost_ns, straggler = min(mean_ns, exposed_ns), ranks.straggler
    late_ns = 0.0 if straggler is None else per_step(straggler.delay_ns)
    if cost_ns < OVERHEAD_MODERATE * step_ns or late_ns >= _MOSTLY * cost_ns:
        return
    bound_ns, share = windows[0].bounded(cost_ns, min(cost_ns / step_ns, 1.0))
    waited.sort(key=lambda row: -(row.caused_ns or 0))
    claim = f"the ranks wait for each other, {duration(mean_ns)} {windows[0].per} on average"
    if straggler is not None and straggler.rank is not None:
        claim += (
            f"; rank {straggler.rank} causes most of it, but without its delays alone only {duration(late_ns)} is saved"
        )
    yield Match(
        severity="warning" if cost_ns >= OVERHEAD_HIGH * step_ns else "info",
        claim=claim,
        evidence=tuple(
            f"rank {row.rank} waits {duration(per_step(row.wait_ns or 0))} {windows[0].per}, and others wait for it "
            f"{duration(per_step(row.caused_ns or 0))}, added up"
            for row in waited[:_MOST_RANKS]
        ),
        cost_ns_per_step=bound_ns if all(window.steps for window in windows) else None,
        cost_share=share,
    )


#: A straggler is the cause of the waiting if it could save this share of it.
_MOSTLY: Final = 0.5
#: So many ranks are named as evidence.
_MOST_RANKS: Final = 4


def _is_noise(ranks: Ranks) -> bool:
    """Whether the mean waiting in a collective is within the uncertainty of the ranks' clocks."""
    waited, matched = sum(row.wait_ns or 0 for row in ranks.waits), sum(row.matched for row in ranks.waits)
    return waited / max(matched, 1) <= max((row.clock_spread_ns or 0 for row in ranks.waits), default=0)


STRAGGLER_RULES: Final[tuple[Rule[Summary], ...]] = (
    rule("straggler", _straggler, {"least": NOISE_FLOOR, "rank": "that rank"}),
    rule("uneven_ranks", _uneven, {"least": OVERHEAD_MODERATE, "high": OVERHEAD_HIGH, "mostly": _MOSTLY}),
)
