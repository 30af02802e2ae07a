"""Communication on one rank: the length of each collective, the part that computation did not hide, and all-reduces.

Collectives on the host are those of gloo on a CPU. They run on separate threads, each with PyTorch's label
(`gloo:all_reduce`). They are hidden while an operator runs on a training thread; otherwise the training waits. Hidden
collectives still cost time if both share cores. If no operators are recorded, the hidden part is unknown.

The all-reduces of a rank are those of its GPU, or those of the host if the GPU has none; each instant counts once.
`measured` is the union of their spans, including the wait for other ranks. `exposed` is the part of it in which no
compute kernel ran on any stream of the GPU or, on a CPU, no operator on a training thread (None if the trace holds no
operators). In a trace with steps, only all-reduces launched in steps count. `expected` is the time that messages of
their sizes take over the link alone.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from steptrace import intervals
from steptrace.analysis.common.activity import activity
from steptrace.analysis.common.kernel_names import short_name
from steptrace.analysis.common.registry import part, table
from steptrace.documents.base import Document, field, reference
from steptrace.documents.communication import AllReduce, CollectiveName, Collectives, ExpectedBy
from steptrace.documents.table import rows
from steptrace.estimate.gpus import gpu_of_driver
from steptrace.intervals import Spans
from steptrace.limits import WAITING_UNKNOWN
from steptrace.trace.columns import counted, map_names, references, row_numbers, spans_of, unmeasured
from steptrace.trace.model import Trace, on_training, once
from steptrace.trace.names import host_collective, is_collective_op

#: Bytes of an element, by PyTorch's names of element types.
ELEMENT_BYTES = {
    **dict.fromkeys(("Byte", "Char", "Bool", "Float8_e4m3fn", "Float8_e5m2", "Float8_e4m3fnuz", "Float8_e5m2fnuz"), 1),
    **dict.fromkeys(("Short", "Half", "BFloat16", "UInt16"), 2),
    **dict.fromkeys(("Int", "Float", "ComplexHalf", "UInt32"), 4),
    **dict.fromkeys(("Long", "Double", "ComplexFloat", "UInt64"), 8),
    "ComplexDouble": 16,
}


class CollectiveTime(Document, frozen=True):
    """One collective: its activity on a GPU, or PyTorch's label around it where the host carried it out (gloo).

    `exposed_ns` is its own length without a compute kernel on any stream of the GPU, on a host without an operator.
    Collectives that run at once each count theirs, so the sum can exceed `exposed_comm_ns`, which counts each instant
    once.
    """

    kernel: Annotated[int | None, reference("kernels", "null for one of the host.", is_key=True)]
    label: Annotated[int | None, reference("labels", "the label around it; null for one of a GPU.", is_key=True)]
    collective: Annotated[str, field("`all_reduce`, ..., or the kernel's short name where nothing says it.")]
    group: Annotated[str | None, field("Process group, null if not in the trace.")]
    stream: Annotated[int | None, field("Stream it ran on; null for one of the host.")]
    thread: Annotated[int | None, reference("threads", "the thread that carried it out; null on a GPU.")]
    step: Annotated[int | None, reference("steps", "the step that launched it, or it began in; null outside them.")]
    ts: Annotated[int, field("Start.")]
    dur_ns: Annotated[int, field("Length, waiting for other ranks included.")]
    exposed_ns: Annotated[
        int | None, field("The part of its length that no computation hid; null on a host without recorded operators.")
    ]
    bytes: Annotated[
        int | None,
        field("The larger of the bytes that this rank sends and receives (on a host: sends); null if not recorded."),
    ]
    ranks: Annotated[int | None, field("Ranks of its group; null if not recorded.")]
    bus_bytes: Annotated[
        int | None, field("Bytes that cross the link of a rank (`bus_share`); null if a size is not recorded.")
    ]


@table("collective_times", CollectiveTime)
@once
def collective_times(trace: Trace) -> pd.DataFrame:
    """The table `CollectiveTime`: the collectives of the analysed GPU, and then the host's, each in order of time."""
    return pd.concat([_on_the_gpu(trace), _on_the_host(trace)], ignore_index=True)


def gpu_collectives(trace: Trace) -> pd.DataFrame:
    """The rows of `collective_times` that ran on the GPU."""
    times = collective_times(trace)
    return times[times["kernel"].notna().to_numpy()]


def host_collectives(trace: Trace) -> pd.DataFrame:
    """The rows of `collective_times` that ran on the host, with a new index."""
    times = collective_times(trace)
    return times[times["label"].notna().to_numpy()].reset_index(drop=True)


def _on_the_gpu(trace: Trace) -> pd.DataFrame:
    collectives = trace.collectives
    kernel = collectives["kernel"].to_numpy()
    here = trace.kernels["device"].to_numpy()[kernel] == trace.device
    collectives = collectives[here]
    kernel = kernel[here]
    kernels = trace.kernels.iloc[kernel]
    start, length = kernels["ts"].to_numpy(), kernels["dur"].to_numpy()
    hidden = intervals.measure_within(activity(trace).compute, start, start + length)
    both = zip(collectives["name"], kernels["name"], strict=True)
    names = [short_name(str(kernel)) if pd.isna(name) else name for name, kernel in both]
    return pd.DataFrame(
        {
            "kernel": counted(kernel.astype(np.int64)),
            "label": unmeasured(len(kernel)),
            "collective": pd.Series(names, dtype=object),
            "group": collectives["group"].to_numpy(dtype=object),
            "stream": counted(kernels["stream"].to_numpy(dtype=np.int64)),
            "thread": unmeasured(len(kernel)),
            "step": references(row_numbers(kernels["step"])),
            "ts": start,
            "dur_ns": length,
            "exposed_ns": counted(length - hidden),
            "bytes": (size := _bytes(collectives)),
            "ranks": pd.Series(ranks := _group_sizes(collectives), dtype="Int64"),
            "bus_bytes": _bus_bytes(names, size, ranks),
        }
    )


def _on_the_host(trace: Trace) -> pd.DataFrame:
    labels = trace.labels
    called = map_names(labels["name"], host_collective, object)
    label = np.flatnonzero(pd.notna(called))
    label = label[np.argsort(labels["ts"].to_numpy()[label], kind="stable")]
    chosen = labels.iloc[label]
    start, length = chosen["ts"].to_numpy(), chosen["dur"].to_numpy()
    compute = host_compute(trace)
    none = unmeasured(len(label))
    return pd.DataFrame(
        {
            "kernel": none,
            "label": counted(label.astype(np.int64)),
            "collective": pd.Series(called[label], dtype=object),
            "group": pd.Series([None] * len(label), dtype=object),
            "stream": none,
            "thread": counted(chosen["thread"].to_numpy(dtype=np.int64)),
            "step": references(row_numbers(chosen["step"])),
            "ts": start,
            "dur_ns": length,
            "exposed_ns": none
            if compute is None
            else counted(length - intervals.measure_within(compute, start, start + length)),
            "bytes": chosen["bytes"].array,
            "ranks": none,  # the labels on the host do not give the number of ranks
            "bus_bytes": none,
        }
    )


def collectives_by_name(times: pd.DataFrame) -> pd.DataFrame:
    """`collective_times` summed up by collective and group, the most exposed first.

    Returns a table with the columns of `CollectiveName`. A figure is null if any of its collectives lacks it. Waiting
    is known if `times` has the columns `wait_ns`, `exposed_wait_ns` and `least_wait_ns` (`rank_waits`). The first two
    are null for a collective that a rank of its group lacks. A group's waiting is null if such collectives take more
    than `limits.WAITING_UNKNOWN` of its time; less counts as transfer.
    """
    if "wait_ns" not in times:
        none = unmeasured(len(times))
        times = times.assign(wait_ns=none, exposed_wait_ns=none, least_wait_ns=none)
    groups = times.groupby(["collective", "group"], dropna=False, sort=True)
    table = groups.agg(
        count=("dur_ns", "size"),
        **{f"{how}_ns": ("dur_ns", how) for how in ("sum", "median", "max")},
        exposed_ns=("exposed_ns", _sum_if_known),
        bytes=("bytes", _sum_if_known),
        bus_bytes=("bus_bytes", _sum_if_known),
        matched=("wait_ns", "count"),
        wait_ns=("wait_ns", sum_of_known),
        exposed_wait_ns=("exposed_wait_ns", sum_of_known),
        least_wait_ns=("least_wait_ns", sum_of_known),
    ).reset_index()
    known = np.array([waiting_known(part["dur_ns"], part["wait_ns"].notna()) for _, part in groups], dtype=bool)
    total = table["sum_ns"].to_numpy(dtype=np.float64)
    table["exposed_ns"] = table["exposed_ns"].astype("Int64")
    hidden = total - table["exposed_ns"].to_numpy(dtype=np.float64, na_value=np.nan)
    table["hidden_pct"] = np.divide(100.0 * hidden, total, out=np.full(len(table), np.nan), where=total > 0)
    table["bytes"] = table["bytes"].astype("Int64")
    table["wait_ns"] = table["wait_ns"].astype("Int64").where(known)
    least_wait = table["least_wait_ns"].astype("Int64")
    table["matched"] = table["matched"].astype("Int64").where(least_wait.notna())
    table["least_wait_ns"] = least_wait.where(table["wait_ns"].isna())
    table["transfer_ns"] = table["sum_ns"] - table["wait_ns"]
    table["exposed_transfer_ns"] = table["exposed_ns"] - table.pop("exposed_wait_ns").astype("Int64")
    bus_bytes = table.pop("bus_bytes").astype("Int64")
    table["bus_bytes_per_s"] = _rate(bus_bytes, table["sum_ns"])
    table["transfer_bus_bytes_per_s"] = _rate(bus_bytes, table["transfer_ns"])
    order = ["exposed_ns", "sum_ns", "collective"]
    return table.sort_values(order, ascending=[False, False, True], kind="stable").reset_index(drop=True)


def waiting_known(lengths: "pd.Series[int]", known: "pd.Series[bool]") -> bool:
    """Whether the waiting of these collectives is known, up to a negligible part of their time.

    Args:
        lengths: their lengths in ns.
        known: whether the waiting of each is known.
    """
    return bool(known.any()) and float(lengths[~known].sum()) <= WAITING_UNKNOWN * float(lengths.sum())


def _sum_if_known(values: "pd.Series[int]") -> Any:
    return values.sum() if values.notna().all() else pd.NA


def sum_of_known(values: "pd.Series[int]") -> Any:
    """The sum of the values that are known; null if none is."""
    return values.sum() if values.notna().any() else pd.NA


def _rate(size: "pd.Series[int]", ns: "pd.Series[int]") -> NDArray[np.float64]:
    """Bytes per second; NaN if the bytes or the time are unknown, or the time is 0."""
    amounts, times = (values.to_numpy(dtype=np.float64, na_value=np.nan) for values in (size, ns))
    rates: NDArray[np.float64] = np.divide(1e9 * amounts, times, out=np.full(len(times), np.nan), where=times > 0)
    return rates


def bus_share(collective: str, ranks: int) -> float | None:
    """Factor from a collective's bytes to the bytes that cross a link, as in nccl-tests; None for other collectives.

    The resulting bus bandwidth can be compared with that of a link, for any number of ranks.
    """
    if collective not in _BUS_SHARE:
        return None
    return _BUS_SHARE[collective] * (ranks - 1) / ranks if collective in _EACH_OTHER else _BUS_SHARE[collective]


#: A rank in the list of a process group.
_RANK: Final = re.compile(r"\d+")
#: In these collectives each rank keeps its own part of the message, which crosses no link.
_EACH_OTHER: Final = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all"})
_BUS_SHARE: Final = {
    **{"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0},
    **{"broadcast": 1.0, "reduce": 1.0, "send": 1.0, "recv": 1.0, "send_recv": 1.0},
}


def _bus_bytes(names: Sequence[str], size: "pd.Series[int]", ranks: Sequence[int | None]) -> "pd.Series[int]":
    shares = [None if several is None else bus_share(name, several) for name, several in zip(names, ranks, strict=True)]
    return (size.astype("Float64") * pd.Series(shares, dtype="Float64")).round().astype("Int64")


def _group_sizes(collectives: pd.DataFrame) -> list[int | None]:
    """The number of ranks in each collective's group; None if not recorded."""
    # PyTorch cuts long lists short by "...".
    listed = [
        None if pd.isna(ranks) or "..." in ranks else len(_RANK.findall(ranks)) or None
        for ranks in collectives["group_ranks"]
    ]
    return [
        other if pd.isna(size) else int(size) for size, other in zip(collectives["group_size"], listed, strict=True)
    ]


@part("collectives")
def collectives(trace: Trace) -> Collectives | None:
    """The collectives by name; None if the trace could not show any."""
    times = host_collectives(trace) if trace.device is None else gpu_collectives(trace)
    if trace.device is None and not len(times):
        return None
    return Collectives(
        count=len(times),
        by_name=rows(collectives_by_name(times), CollectiveName) if len(times) else (),
    )


def _bytes(collectives: pd.DataFrame) -> "pd.Series[int]":
    """The larger of the sent and the received message, in bytes; null if not recorded."""
    element = pd.Series([ELEMENT_BYTES.get(dtype) for dtype in collectives["dtype"]], dtype="Int64")
    elements = collectives[["in_elements", "out_elements"]].max(axis=1, skipna=True).astype("Int64")
    elements = elements.reset_index(drop=True)
    return elements * element


@once
def host_compute(trace: Trace) -> Spans | None:
    """The spans of operators on training threads, without calls of collectives; in normal form.

    None if the profiler recorded no operators there: none in the steps, or none at all in a trace without steps.
    """
    ops = trace.ops
    training = on_training(trace, ops)
    recorded = training & ops["step"].notna().to_numpy() if len(trace.steps) else training
    if not recorded.any():
        return None
    return intervals.union(spans_of(ops[["ts", "dur"]][training & ~map_names(ops["name"], is_collective_op)]))


ALL_REDUCE = "all_reduce"


@part("all_reduce")
def all_reduce(trace: Trace) -> AllReduce | None:
    """The all-reduces of the analysed GPU; if it has none, those of the host; None if there are none either."""
    times = collective_times(trace)
    counts = (times["collective"] == ALL_REDUCE).to_numpy()
    if len(trace.steps):
        counts = counts & times["step"].notna().to_numpy()
    on_gpu = counts & times["kernel"].notna().to_numpy()
    reduces = times[on_gpu if on_gpu.any() else counts]
    if not len(reduces):
        return None
    # With GPUs the host's operators only launch kernels, so gloo's all-reduces are hidden by kernels only.
    compute = host_compute(trace) if trace.device is None else activity(trace).compute
    start = reduces["ts"].to_numpy(dtype=np.int64)
    spans = intervals.union(intervals.spans(start, start + reduces["dur_ns"].to_numpy(dtype=np.int64)))
    measured = intervals.measure(spans)
    expected = expected_time(reduces, trace)
    exposed = None if compute is None else intervals.measure(intervals.subtract(spans, compute))
    return AllReduce(
        source="gpu" if on_gpu.any() else "host",
        count=len(reduces),
        bytes=int(reduces["bytes"].sum()) if reduces["bytes"].notna().all() else None,
        measured_ns=measured,
        exposed_ns=exposed,
        overlap=1 - exposed / measured if measured and exposed is not None else None,
        expected_ns=None if expected is None else expected[0],
        expected_by=None if expected is None else expected[1],
    )


#: NCCL's published times are for the GPUs of one machine; this is their largest number.
_MOST_PUBLISHED: Final = 8
#: The sources of a collective's expected time, the most certain first.
_KNOWN_BY: Final = ("measured", "nvlink", "pcie")


def expected_time(reduces: pd.DataFrame, trace: Trace) -> tuple[int, ExpectedBy] | None:
    """The time in ns that all-reduces of these sizes should take one after another, and its source.

    The source is the bandwidth that the user gave; otherwise, for a GPU with a known data sheet, NCCL's published times
    on it or on a GPU with the same kind of link. None if a size or the number of ranks is not known.

    Args:
        reduces: rows of `collective_times`.
        trace: the trace that they are from.
    """
    ranks = reduces["ranks"].fillna(trace.meta.world_size) if trace.meta.world_size else reduces["ranks"]
    if reduces["bytes"].isna().any() or ranks.isna().any():
        return None
    sizes = Counter(zip(map(int, reduces["bytes"]), map(int, ranks), strict=True))
    if trace.bus_bytes_per_s is not None:
        crossing = sum(count * size * (bus_share(ALL_REDUCE, n) or 0.0) for (size, n), count in sizes.items())
        return round(1e9 * crossing / trace.bus_bytes_per_s), "given"
    gpu = gpu_of_driver(trace.meta.device_name(trace.device))
    if gpu is None or reduces["kernel"].isna().any() or any(not 1 < n <= _MOST_PUBLISHED for _, n in sizes):
        return None
    from steptrace.estimate.collectives import expected_seconds  # a trace without collectives needs no estimates

    total = 0.0
    known = set()
    for (size, n), count in sizes.items():
        seconds, by = expected_seconds(ALL_REDUCE, size, n, gpu)
        total += count * seconds
        known.add(by)
    least_sure = next(by for by in reversed(_KNOWN_BY) if by in known)
    return round(1e9 * total), _EXPECTED_BY[least_sure]


_EXPECTED_BY: Final[Mapping[str, ExpectedBy]] = {"measured": "published", "nvlink": "nvlink", "pcie": "pcie"}
