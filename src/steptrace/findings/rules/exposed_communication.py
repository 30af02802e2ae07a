"""Transfer between ranks that no computation hides.

Where the traces of all ranks were read together, waiting for other ranks is known and does not count. Elsewhere the
finding is on the whole time, and advises to read the other ranks, since less traffic does not shorten waiting.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Final, Literal

from steptrace.documents.base import Document, field
from steptrace.documents.communication import CollectiveName, ExpectedBy
from steptrace.findings.collectives import Exposed, exposed_in, exposed_transfer_ns
from steptrace.findings.rule import Match, Rule, Threshold, TraceFigures, Words, advise
from steptrace.findings.thresholds import HIGH, MODERATE
from steptrace.findings.window import Window
from steptrace.format import bandwidth, count, duration, plural, share, size_bytes
from steptrace.words.codes import EXPECTED_BY
from steptrace.words.notes import ranks_read

#: Below this share hidden, communication and computation run one after the other.
_HIDDEN: Final = Threshold(0.10, "ours")
_ALL_REDUCE: Final = "all_reduce"
#: Messages smaller than this are small, if a step has several of them.
_SMALL: Final = Threshold(2**20, "DistributedDataParallel's own first bucket; its others have 25 MiB", unit="B")
_SEVERAL: Final = Threshold(4, "ours", unit="")
#: All-reduces that take at least this many times their expected time probably wait for another rank.
_WAITING: Final = Threshold(3, "ours", unit="")
#: A collective with at least this share of the exposed communication counts as nearly all of it.
_NEARLY_ALL: Final = 0.9
#: The most collectives that are named.
_MOST_NAMED: Final = 3

#: The subject of the advice: a kind of collectives, or a problem of all-reduces.
Remedy = Literal[
    "other_ranks",
    "small_all_reduces",
    "late_all_reduces",
    "all_reduce",
    "sharded_parameters",
    "all_to_all",
    "broadcast",
    "send_recv",
    "barrier",
]


class CollectiveFigures(Document, frozen=True, kw_only=True):
    """The collectives of one name in a mean step."""

    collective: Annotated[str, field("Name of the collective.")]
    count: Annotated[float, field("How many.")]
    sum_ns: Annotated[float, field("Their summed length.")]
    exposed_ns: Annotated[float | None, field("The part of it that no computation hides.")]
    transfer_ns: Annotated[float | None, field("The length without waiting; null where that is not known.")]
    exposed_transfer_ns: Annotated[float | None, field("The part of the transfer that no computation hides.")]
    wait_ns: Annotated[float | None, field("Waiting for other ranks.")]
    matched: Annotated[int | None, field("How many of the whole trace that is.")]
    all: Annotated[int, field("How many the whole trace has.")]
    bus_bytes_per_s: Annotated[float | None, field("Bus bandwidth, waiting included.")]
    transfer_bus_bytes_per_s: Annotated[float | None, field("Bus bandwidth of the transfer alone.")]


class AllReduceFigures(Document, frozen=True, kw_only=True):
    """The all-reduces of a mean step."""

    count: Annotated[float, field("How many.")]
    bytes: Annotated[float | None, field("What they reduce.")]
    measured_ns: Annotated[float, field("Time with any of them running.")]
    hidden_share: Annotated[float | None, field("Part of it that computation hides.")]
    expected_ns: Annotated[float | None, field("What messages of these sizes should take, see `expected_by`.")] = None
    expected_by: Annotated[ExpectedBy | None, field("As in `traces.all_reduce` of summary.json.")] = None


class Figures(TraceFigures, frozen=True, kw_only=True):
    """Exposed communication of a step."""

    counted_ns: Annotated[
        float, field("Exposed transfer, or where waiting is not known all exposed communication, waiting included.")
    ]
    counted_share: Annotated[float, field("The same as a share of the step.")]
    transfer_ns: Annotated[float | None, field("Exposed transfer; null where the waiting is not known.")]
    wait_ns: Annotated[float | None, field("Exposed waiting for other ranks; null where it is not known.")]
    least_wait_ns: Annotated[
        float | None, field("Where it is not known: the part of it that is waiting for ranks that were read.")
    ]
    ranks_read: Annotated[int, field("Ranks whose traces were read together.")]
    world_size: Annotated[int | None, field("Ranks of the job, if the trace says it.")]
    collectives: Annotated[tuple[CollectiveFigures, ...], field("Those that take most of it.")]
    all_reduce: Annotated[AllReduceFigures | None, field("All all-reduces.")]
    remedies: Annotated[tuple[Remedy, ...], field("What the advice is about; empty: advice for any collective.")]


def _find(window: Window) -> Iterator[Match[Figures]]:
    exposed = exposed_in(window)
    if exposed is None or window.share(exposed.counted_ns) < MODERATE.value:
        return
    rows = () if window.entry.collectives is None else window.entry.collectives.by_name
    most = sorted(rows, key=lambda row: -exposed_transfer_ns(row))[:_MOST_NAMED]
    yield Match(
        severity="warning" if window.share(exposed.counted_ns) >= HIGH.value else "info",
        figures=Figures(
            steps=window.steps,
            step_ns=window.step_ns,
            counted_ns=exposed.counted_ns,
            counted_share=window.share(exposed.counted_ns),
            transfer_ns=exposed.transfer_ns,
            wait_ns=exposed.wait_ns,
            least_wait_ns=None if exposed.wait_ns is not None else exposed.least_wait_ns,
            ranks_read=window.entry.ranks_read,
            world_size=window.entry.world_size,
            collectives=tuple(_of_a_step(row, window) for row in most),
            all_reduce=_all_reduces(window),
            remedies=tuple(_remedies(window, rows) if _is_traffic(window, exposed, rows) else ["other_ranks"]),
        ),
        cost_ns_per_step=exposed.counted_ns,
    )


def _of_a_step(row: CollectiveName, window: Window) -> CollectiveFigures:
    def per_step(ns: int | None) -> float | None:
        return None if ns is None else window.per_step(ns)

    return CollectiveFigures(
        collective=row.collective,
        count=window.per_step(row.count),
        sum_ns=window.per_step(row.sum_ns),
        exposed_ns=per_step(row.exposed_ns),
        transfer_ns=per_step(row.transfer_ns),
        exposed_transfer_ns=per_step(row.exposed_transfer_ns),
        wait_ns=per_step(row.wait_ns),
        matched=row.matched,
        all=row.count,
        bus_bytes_per_s=row.bus_bytes_per_s,
        transfer_bus_bytes_per_s=row.transfer_bus_bytes_per_s,
    )


def _all_reduces(window: Window) -> AllReduceFigures | None:
    reduces = window.entry.all_reduce
    if reduces is None:
        return None
    return AllReduceFigures(
        count=window.per_step(reduces.count),
        bytes=window.per_step(reduces.bytes) if reduces.bytes else None,
        measured_ns=window.per_step(reduces.measured_ns),
        hidden_share=reduces.overlap,
        expected_ns=None if reduces.expected_ns is None else window.per_step(reduces.expected_ns),
        expected_by=reduces.expected_by,
    )


def _dominating(rows: Sequence[CollectiveName]) -> str | None:
    """The collective with the most exposed transfer, over all its process groups; None without any."""
    by_collective = defaultdict[str, float](float)
    for row in rows:
        by_collective[row.collective] += exposed_transfer_ns(row)
    most = max(by_collective, key=lambda name: by_collective[name], default=None)
    return most if most is not None and by_collective[most] else None


#: The subject of the advice, by the collective that takes most.
_BY_COLLECTIVE: Final[Mapping[str, Remedy]] = {
    "all_reduce": "all_reduce",
    "all_gather": "sharded_parameters",
    "reduce_scatter": "sharded_parameters",
    "all_to_all": "all_to_all",
    "broadcast": "broadcast",
    "send_recv": "send_recv",
    # A send and a receive that PyTorch records each by itself are one exchange.
    "send": "send_recv",
    "recv": "send_recv",
    "barrier": "barrier",
}


def _is_traffic(window: Window, exposed: Exposed, rows: Sequence[CollectiveName]) -> bool:
    """Whether the exposed time is known to be traffic, which advice on traffic rests on.

    It is where the waiting is known, or where all-reduces take most of it, and hardly longer than they should.
    """
    if exposed.wait_ns is not None:
        return True
    reduces = window.entry.all_reduce
    if reduces is None or not reduces.expected_ns or _dominating(rows) not in (_ALL_REDUCE, None):
        return False
    return reduces.measured_ns < _WAITING.value * reduces.expected_ns


def _remedies(window: Window, rows: Sequence[CollectiveName]) -> list[Remedy]:
    """The advice for the collective that takes most; empty if there is none for its kind."""
    dominating = _dominating(rows)
    if dominating == _ALL_REDUCE and (remedies := list(_of_all_reduces(window))):
        return remedies
    remedy = _BY_COLLECTIVE.get(dominating or "")
    return [] if remedy is None else [remedy]


def _of_all_reduces(window: Window) -> Iterator[Remedy]:
    """What is wrong with all-reduces: they are small, or run after the computation."""
    reduces = window.entry.all_reduce
    if reduces is None:
        return
    small = reduces.bytes is not None and reduces.bytes < _SMALL.value * reduces.count
    if small and window.per_step(reduces.count) >= _SEVERAL.value:
        yield "small_all_reduces"
    if reduces.overlap is not None and reduces.overlap < _HIDDEN.value:
        yield "late_all_reduces"


def _words(figures: Figures) -> Words:
    per = figures.per
    included = _what_counts(figures)
    length = f"{duration(figures.counted_ns)} of {duration(figures.step_ns)} {per} that no computation hides"
    evidence = [length + included]
    if figures.wait_ns:
        evidence.append(f"waiting for other ranks: {duration(figures.wait_ns)} {per}")
    if figures.least_wait_ns:
        evidence.append(f"waiting for other ranks: at least {duration(figures.least_wait_ns)} {per}")
    evidence += [_collective_in_words(row, per) for row in figures.collectives]
    if figures.all_reduce is not None:
        evidence.append(_all_reduces_in_words(figures.all_reduce, per))
    claim = f"communication that no computation hides takes {share(figures.counted_share)} of the time"
    # The advice is about one kind of collective, and the bound is of all of them.
    most = figures.collectives[0] if figures.collectives else None
    if most is not None and (exposed := exposed_transfer_ns(most)) and exposed < _NEARLY_ALL * figures.counted_ns:
        claim += f", {duration(exposed)} {per} of it in {most.collective}"
    return Words(
        claim + included,
        tuple(evidence),
        advice=tuple(part for remedy in figures.remedies for part in _ADVICE[remedy]),
    )


def _what_counts(figures: Figures) -> str:
    """How much of the waiting the time includes, in brackets."""
    if figures.wait_ns is not None:
        return " (waiting for other ranks not counted)"
    of = figures.world_size
    read = "" if of is None or of <= figures.ranks_read else f"; {ranks_read(figures.ranks_read, of)}"
    return f" (waiting for other ranks included{read})"


def _all_reduces_in_words(reduces: AllReduceFigures, per: str) -> str:
    size = "" if reduces.bytes is None else f", {size_bytes(reduces.bytes)}"
    hidden = "" if reduces.hidden_share is None else f"; computation hides {share(reduces.hidden_share)}"
    expected = ""
    if reduces.expected_ns is not None and reduces.expected_by is not None:
        expected = f"; {duration(reduces.expected_ns)} expected {EXPECTED_BY[reduces.expected_by]}"
    text = f"{plural(round(reduces.count, 2), 'all-reduce')} {per}{size}, {duration(reduces.measured_ns)}"
    return text + hidden + expected


def _collective_in_words(row: CollectiveFigures, per: str) -> str:
    """A name's collectives: how many, how long, and their bus bandwidth, with and without waiting."""
    text = f"{row.collective}: {count(row.count)} {per}, "
    if row.transfer_ns is None or row.wait_ns is None:
        text += f"{duration(row.exposed_ns or 0)} of {duration(row.sum_ns)} not hidden"
        if row.bus_bytes_per_s is None:
            return text
        return f"{text}; bus bandwidth {bandwidth(row.bus_bytes_per_s)}, waiting included"
    text += f"{duration(row.transfer_ns)} of transfer"
    if row.exposed_transfer_ns is not None:
        text += f", {duration(row.exposed_transfer_ns)} of it not hidden"
    if row.matched:
        text += f", after {duration(row.wait_ns)} of waiting" if row.wait_ns else ", no waiting"
        if row.matched < row.all:
            text += f" (known of {count(row.matched)} of {count(row.all)})"
    if row.bus_bytes_per_s is None or row.transfer_bus_bytes_per_s is None:
        return text
    transfer, whole = bandwidth(row.transfer_bus_bytes_per_s), bandwidth(row.bus_bytes_per_s)
    return f"{text}; bus bandwidth {transfer}, with the waiting {whole}"


_ADVICE: Final[Mapping[Remedy, tuple[str, ...]]] = {
    "other_ranks": advise(
        "Read the traces of all ranks together first (`steptrace analyze RANK0 RANK1 ... --out DIR`): only then is it "
        "known how much of this time is waiting for a slower rank, which less traffic does not shorten.",
    ),
    "small_all_reduces": advise(
        "The all-reduces are small: if they average gradients, raise bucket_cap_mb, so that latency is paid once."
    ),
    "late_all_reduces": advise(
        "The all-reduces run after the computation instead of beside it: if they average gradients, let "
        "DistributedDataParallel reduce them bucket by bucket during the backward pass, with no all-reduce of "
        "your own after it.",
        "With one bucket nothing is left to compute while it is reduced.",
    ),
    "all_reduce": advise(
        "Send fewer bytes (for gradients a bf16 compression hook of DistributedDataParallel, or gradient "
        "accumulation under no_sync), or reduce less often per sample (a larger batch); on several nodes look at "
        "the network first.",
    ),
    "sharded_parameters": advise(
        "If they belong to sharded parameters (FSDP, ZeRO): gather the next layer's parameters while this one "
        "computes (prefetching is on by default in `fully_shard` and needs layers wrapped one by one), gather and "
        "reduce in bf16 (`MixedPrecisionPolicy`), keep parameters gathered between forward and backward pass "
        "where memory allows it (`reshard_after_forward=False`), and shard within a node only (a 2-D device "
        "mesh).",
        "A larger batch gives each gather more computation to hide behind.",
    ),
    "all_to_all": advise(
        "An all-to-all takes as long as its largest part: give each rank the same share (experts with a capacity "
        "or a balancing loss, embedding tables placed by their traffic).",
        "Keep it within a node where the model allows that, and let other work run beside it: split the batch in "
        "two, and exchange one half while the other computes.",
    ),
    "broadcast": advise(
        "Find out what is broadcast in each step: DistributedDataParallel sends buffers before each forward pass, "
        "which `broadcast_buffers=False` ends where ranks need not share them.",
        "Send many small tensors as one.",
    ),
    "send_recv": advise(
        "Between stages of a pipeline: use more and smaller micro-batches, or a schedule that sends while it "
        "computes (1F1B, interleaved), and stages of equal length.",
    ),
    "barrier": advise("Leave the barrier out of the step: collectives need none before or after them."),
}

RULE: Final = Rule(
    name="exposed_communication",
    topic="communication",
    figures=Figures,
    words=_words,
    in_trace=_find,
    condition="communication that no computation hides takes at least {least} of the step; a warning from {high} on. "
    "Where the traces of all ranks were read, waiting for other ranks does not count, and the advice is for the "
    "collective that takes most of it. Of all-reduces it also asks whether they have less than {small} on average, "
    "{several} or more a step, and whether computation hides less than {hidden} of them. Where ranks were not read, "
    "the advice is to read them, except for all-reduces that take less than {waiting} times what is expected",
    thresholds={
        "least": MODERATE,
        "high": HIGH,
        "small": _SMALL,
        "several": _SEVERAL,
        "hidden": _HIDDEN,
        "waiting": _WAITING,
    },
    advice=advise(
        "Look at the section Communication for the collectives that take most of it.",
        "Let them run beside computation, send fewer bytes, and communicate less often per sample (a larger "
        "batch); on several nodes look at the network first.",
    ),
    counter_check="Train on one rank: its step time is that without communication. Read the traces of all ranks "
    "together: if a rank waits for a slower one, the network is not the cause. A larger bucket begins later: check "
    "that the exposed time gets shorter.",
    study="all_reduce",
    gpu_work=True,
)
