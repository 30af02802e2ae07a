"""Operators against the data sheet of the GPU they ran on, where a trace has the sizes of their inputs."""

from typing import Any

import numpy as np
import pandas as pd

from steptrace.analysis.common.registry import table_part, without_rows_of
from steptrace.analysis.precision import kernel_format
from steptrace.documents.roofline import OperatorRoofline, SlowCause
from steptrace.documents.subject import Absence
from steptrace.documents.table import frame_of
from steptrace.estimate.gpus import Gpu, gpu_of_driver
from steptrace.trace.model import Trace, launching_op, once

_LISTS = ["types", "sizes", "strides"]
#: Figures that a row sums over its calls.
_SUMS = ("count", "ns", "ideal_ns", "slowest_ns", "flop", "bytes")


def why_no_roofline(trace: Trace) -> Absence:
    """Why the table `roofline` is empty: the code of what a trace with GPU work lacks."""
    name = trace.meta.device_name(trace.device)
    if name is None:
        return "no_gpu_name"
    return "no_data_sheet" if gpu_of_driver(name) is None else "no_input_sizes"


@table_part("roofline", absent=why_no_roofline)
@once
@without_rows_of("kernels", OperatorRoofline)
def roofline(trace: Trace) -> pd.DataFrame:
    """The table `roofline` of the analysed GPU, the most GPU time first; empty without sizes or a known data sheet."""
    gpu = gpu_of_driver(trace.meta.device_name(trace.devices[0])) if trace.devices else None
    calls = None if gpu is None else calls_with_sizes(trace)
    if gpu is None or calls is None or calls.empty:
        return frame_of(OperatorRoofline)
    rows = []
    keys = ["name", *_LISTS, "tf32"]
    groups = calls.groupby(keys, observed=True, sort=False).agg(
        count=("ns", "size"), ns=("ns", "sum"), filled_ns=("filled_ns", "sum")
    )
    for group in groups.reset_index().itertuples(index=False):
        row = _row(group, gpu)
        if row is not None:
            rows.append(row)
    if not rows:
        return frame_of(OperatorRoofline)
    keys = ["name", "inputs", "because"]
    table = pd.DataFrame(rows).groupby(keys, as_index=False, dropna=False).sum(numeric_only=True)
    table = table.groupby(["name", "inputs"], as_index=False).agg({**dict.fromkeys(_SUMS, "sum"), "because": _first})
    table["roofline_pct"] = 100 * table["ideal_ns"] / table["ns"]
    return frame_of(OperatorRoofline, table.sort_values(["ns", "name"], ascending=[False, True], ignore_index=True))


def calls_with_sizes(trace: Trace) -> pd.DataFrame:
    """Each call that launched kernels on the analysed GPU and has sizes: its operator, lists, and the kernels' time.

    `filled_ns` is that time, each kernel with the share of the GPU's multiprocessors that its blocks can occupy; all of
    it where blocks are unknown.
    """
    of_gpu = (trace.kernels["device"] == trace.devices[0]).to_numpy() & (trace.kernels["kind"] == "compute").to_numpy()
    op = launching_op(trace)
    wanted = of_gpu & (op >= 0)
    names = trace.kernels["name"][wanted]
    tf32 = {name: kernel_format(str(name)).tf32 for name in names.unique()}
    kernels = pd.DataFrame(
        {
            "op": op[wanted],
            "ns": (ns := trace.kernels["dur"].to_numpy()[wanted]),
            "filled_ns": ns * trace.kernels["blocks_per_sm"].fillna(1.0).clip(upper=1.0).to_numpy(dtype=float)[wanted],
            "tf32": names.astype(object).map(tf32).to_numpy(),
        }
    )
    by_op = kernels.groupby("op", sort=True).agg(ns=("ns", "sum"), filled_ns=("filled_ns", "sum"), tf32=("tf32", "any"))
    ops = trace.ops.iloc[by_op.index.to_numpy()]
    frame = pd.DataFrame({name: ops[name].astype(str).to_numpy() for name in ("name", *_LISTS)})
    frame["ns"], frame["tf32"] = by_op["ns"].to_numpy(dtype=np.int64), by_op["tf32"].to_numpy(dtype=bool)
    frame["filled_ns"] = by_op["filled_ns"].to_numpy(dtype=np.float64)
    return frame[frame["sizes"] != "null"]


def _first(values: "pd.Series[Any]") -> Any:
    """The first value, null or not, which pandas' own "first" passes over."""
    return values.iloc[0]


#: A call whose kernels occupy less than this share of the multiprocessors leaves most of the GPU idle.
FEW_BLOCKS = 0.5


def _row(group: Any, gpu: Gpu) -> dict[str, object] | None:
    # A trace without sizes needs no estimates, nor the time to import them.
    from steptrace.estimate.bounds import kernel_bounds
    from steptrace.estimate.kernel_classes import misaligned
    from steptrace.estimate.traced_operator import recorded_call

    call = recorded_call(group.name, group.types, group.sizes, group.strides)
    bounds = None if call is None else kernel_bounds(call, gpu, tf32=group.tf32)
    if call is None or bounds is None or group.ns <= 0:
        return None
    because: SlowCause | None = None
    if any("16" in part.dtype for part in call.inputs) and misaligned(call):
        because = "misaligned_sizes"
    elif bounds.is_strided:
        because = "strided_inputs"
    elif bounds.ideal_s < bounds.floor_s:
        because = "small_calls"
    elif group.filled_ns < FEW_BLOCKS * group.ns:
        because = "few_blocks"
    inputs = ", ".join(f"{'x'.join(map(str, part.shape)) or 'scalar'} {part.dtype}" for part in call.inputs)
    return {
        "name": group.name,
        "inputs": inputs,
        "count": group.count,
        "ns": group.ns,
        "ideal_ns": round(1e9 * bounds.ideal_s * group.count),
        "flop": bounds.flop * group.count,
        "bytes": bounds.bytes * group.count,
        "slowest_ns": round(1e9 * bounds.slowest_s * group.count),
        "because": because,
    }
