"""Communication on one rank: each collective's length, the part of it that computation did not hide, and all-reduces.

The host's own collectives are gloo's on a CPU, on threads of their own, each with PyTorch's label
(`gloo:all_reduce`). They are hidden while an operator runs on a training thread; otherwise the training waits. Hidden
collectives are not free if both share cores. Without recorded operators the hidden part is unknown.

A rank's all-reduces are its GPU's, or the host's if that reduces; each instant counts once. `measured` is the union of
their spans, waiting for other ranks included; `exposed` is the part of it without a compute kernel on any stream of the
GPU, or on a CPU without an operator on a training thread (None if the trace holds no operators). In a trace with steps
only all-reduces launched in steps count.
"""

import re
from collections.abc import Sequence
from typing import Annotated, Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from steptrace import intervals
from steptrace.analysis.common.activity import activity
from steptrace.analysis.common.kernel_names import short_name
from steptrace.analysis.common.registry import part, table
from steptrace.documents.base import Document, field, reference
from steptrace.documents.communication import AllReduce, CollectiveName, Collectives
from steptrace.documents.table import rows
from steptrace.intervals import Spans
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
    thread: Annotated[int | None, reference("threads", "what carried it out; null for one of a GPU.")]
    step: Annotated[int | None, reference("steps", "the step that launched it, or it began in; null outside them.")]
    ts: Annotated[int, field("Start.")]
    dur_ns: Annotated[int, field("Length, waiting for other ranks included.")]
    exposed_ns: Annotated[
        int | None, field("Of its length, what no computation hid; null on a host where no operator is recorded.")
    ]
    bytes: Annotated[
        int | None, field("The larger of what this rank gives and gets, on a host what it gives; null if not recorded.")
    ]
    bus_bytes: Annotated[
        int | None, field("Bytes that cross the link of a rank (`bus_share`); null if a size is not recorded.")
    ]


@table("collective_times", CollectiveTime)
@once
def collective_times(trace: Trace) -> pd.DataFrame:
    """The table `CollectiveTime`: the collectives of the analysed GPU, and then the host's, each in order of time."""
    return pd.concat([_on_the_gpu(trace), _on_the_host(trace)], ignore_index=True)


def gpu_collectives(trace: Trace) -> pd.DataFrame:
    """Those of the GPU alone."""
    times = collective_times(trace)
    return times[times["kernel"].notna().to_numpy()]


def host_collectives(trace: Trace) -> pd.DataFrame:
    """Those of the host alone."""
    times = collective_times(trace)
    return times[times["label"].notna().to_numpy()].reset_index(drop=True)


def _on_the_gpu(trace: Trace) -> pd.DataFrame:
    collectives = trace.collectives
    kernel = collectives["kernel"].to_numpy()
    here = trace.kernels["device"].to_numpy()[kernel] == trace.device
    collectives, kernel = collectives[here], kernel[here]
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
            "bus_bytes": _bus_bytes(names, size, _group_sizes(collectives)),
        }
    )


def _on_the_host(trace: Trace) -> pd.DataFrame:
    labels = trace.labels
    called = map_names(labels["name"], host_collective, object)
    label = np.flatnonzero(pd.notna(called))
    label = label[np.argsort(labels["ts"].to_numpy()[label], kind="stable")]
    chosen = labels.iloc[label]
    start, length = chosen["ts"].to_numpy(), chosen["dur"].to_numpy()
    compute, none = host_compute(trace), unmeasured(len(label))
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
            "bus_bytes": none,  # a host's labels do not say how many ranks take part
        }
    )


def collectives_by_name(times: pd.DataFrame) -> pd.DataFrame:
    """`collective_times` by collective and group, the most exposed first.

    Returns the columns of `CollectiveName`. A figure is null if any of its collectives lacks it. Waiting is known where
    `times` has the columns `wait_ns` and `exposed_wait_ns` (`rank_waits`): a collective that no other rank's trace
    holds has null there, and counts as transfer.
    """
    if "wait_ns" not in times:
        times = times.assign(wait_ns=unmeasured(len(times)), exposed_wait_ns=unmeasured(len(times)))
    groups = times.groupby(["collective", "group"], dropna=False, sort=True)
    table = groups.agg(
        count=("dur_ns", "size"),
        **{f"{how}_ns": ("dur_ns", how) for how in ("sum", "median", "max")},
        exposed_ns=("exposed_ns", _sum_if_known),
        bytes=("bytes", _sum_if_known),
        bus_bytes=("bus_bytes", _sum_if_known),
        matched=("wait_ns", "count"),
        wait_ns=("wait_ns", _sum_of_known),
        exposed_wait_ns=("exposed_wait_ns", _sum_of_known),
    ).reset_index()
    total = table["sum_ns"].to_numpy(dtype=np.float64)
    table["exposed_ns"] = table["exposed_ns"].astype("Int64")
    hidden = total - table["exposed_ns"].to_numpy(dtype=np.float64, na_value=np.nan)
    table["hidden_pct"] = np.divide(100.0 * hidden, total, out=np.full(len(table), np.nan), where=total > 0)
    table["bytes"] = table["bytes"].astype("Int64")
    table["wait_ns"] = table["wait_ns"].astype("Int64")
    table["matched"] = table["matched"].astype("Int64").where(table["wait_ns"].notna())
    table["transfer_ns"] = table["sum_ns"] - table["wait_ns"]
    table["exposed_transfer_ns"] = table["exposed_ns"] - table.pop("exposed_wait_ns").astype("Int64")
    bus_bytes = table.pop("bus_bytes").astype("Int64")
    table["bus_bytes_per_s"] = _rate(bus_bytes, table["sum_ns"])
    table["transfer_bus_bytes_per_s"] = _rate(bus_bytes, table["transfer_ns"])
    order = ["exposed_ns", "sum_ns", "collective"]
    return table.sort_values(order, ascending=[False, False, True], kind="stable").reset_index(drop=True)


def _sum_if_known(values: "pd.Series[int]") -> Any:
    return values.sum() if values.notna().all() else pd.NA


def _sum_of_known(values: "pd.Series[int]") -> Any:
    return values.sum() if values.notna().any() else pd.NA


def _rate(size: "pd.Series[int]", ns: "pd.Series[int]") -> NDArray[np.float64]:
    """Bytes per second; NaN where either is unknown, or no time passed."""
    amounts, times = (values.to_numpy(dtype=np.float64, na_value=np.nan) for values in (size, ns))
    rates: NDArray[np.float64] = np.divide(1e9 * amounts, times, out=np.full(len(times), np.nan), where=times > 0)
    return rates


def bus_share(collective: str, ranks: int) -> float | None:
    """What a collective's bytes are multiplied by for its bus bandwidth, as nccl-tests does; None for an unknown one.

    The result can be held against the bandwidth of a link, whatever the number of ranks.
    """
    if collective not in _BUS_SHARE:
        return None
    return _BUS_SHARE[collective] * (ranks - 1) / ranks if collective in _EACH_OTHER else _BUS_SHARE[collective]


#: A rank in the list of a process group.
_RANK: Final = re.compile(r"\d+")
#: In these collectives each rank keeps its own part, one of as many as there are ranks.
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
    """The spans of operators on training threads, calls of collectives aside; in normal form.

    None if the trace holds no operator of such a thread, in its steps if it has any: the profiler did not record them.
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
    """The all-reduces of the analysed GPU, or without any there those of the host; None without any."""
    times = collective_times(trace)
    counts = (times["collective"] == ALL_REDUCE).to_numpy()
    if len(trace.steps):
        counts = counts & times["step"].notna().to_numpy()
    on_gpu = counts & times["kernel"].notna().to_numpy()
    reduces = times[on_gpu if on_gpu.any() else counts]
    if not len(reduces):
        return None
    # gloo with GPUs: operators only launch there, so only kernels hide the host's all-reduces.
    compute = host_compute(trace) if trace.device is None else activity(trace).compute
    start = reduces["ts"].to_numpy(dtype=np.int64)
    spans = intervals.union(intervals.spans(start, start + reduces["dur_ns"].to_numpy(dtype=np.int64)))
    measured = intervals.measure(spans)
    exposed = None if compute is None else intervals.measure(intervals.subtract(spans, compute))
    return AllReduce(
        source="gpu" if on_gpu.any() else "host",
        count=len(reduces),
        bytes=int(reduces["bytes"].sum()) if reduces["bytes"].notna().all() else None,
        measured_ns=measured,
        exposed_ns=exposed,
        overlap=1 - exposed / measured if measured and exposed is not None else None,
    )
