"""Operators against the data sheet of the GPU they ran on, where a trace has the sizes of their inputs."""

from typing import Any, Final, NamedTuple

import numpy as np
import pandas as pd

from steptrace.analysis.common.activity import launches_measured, outside_steps
from steptrace.analysis.common.division import gpu_window
from steptrace.analysis.common.registry import table_part, without_rows_of
from steptrace.analysis.precision import kernel_format, precision
from steptrace.documents.roofline import OperatorRoofline, SlowCause
from steptrace.documents.subject import Absence
from steptrace.documents.table import frame_of
from steptrace.estimate.gpus import Gpu, gpu_of_driver
from steptrace.trace.model import Trace, launching_op, once

_LISTS = ["types", "sizes", "strides", "settings"]
#: Figures that a row sums over its calls.
_SUMS = ("count", "ns", "ideal_ns", "slowest_ns", "flop", "bytes")
#: FLOP per ns are GFLOP/s.
_GFLOP_PER_TFLOP: Final = 1e3
_PER_S: Final = 1e9
#: The least share of the time of kernels that multiply, convolve or attend whose FLOP have to be known. Judged.
_LEAST_COVERED: Final = 0.95


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
    table = _judged_calls(trace)
    if table.empty:
        return frame_of(OperatorRoofline)
    keys = ["name", "inputs", "because"]
    table = table.groupby(keys, as_index=False, dropna=False).sum(numeric_only=True)
    table = table.groupby(["name", "inputs"], as_index=False).agg({**dict.fromkeys(_SUMS, "sum"), "because": _first})
    table["roofline_pct"] = 100 * table["ideal_ns"] / table["ns"]
    table["tflop_per_s"] = (table["flop"] / table["ns"] / _GFLOP_PER_TFLOP).where(table["flop"] > 0)
    return frame_of(OperatorRoofline, table.sort_values(["ns", "name"], ascending=[False, True], ignore_index=True))


class FlopRate(NamedTuple):
    """FLOP of matrix products, convolutions and attention in the profiled time. None where too few are known.

    Attributes:
        tflop_per_s: 10^12 of them per second.
        mfu_pct: that in percent of the dense peak of the number format that most of them are in.
    """

    tflop_per_s: float | None = None
    mfu_pct: float | None = None


def flop_rate(trace: Trace) -> FlopRate:
    """The FLOP of the steps, or of a trace without steps, over their time.

    Each call counts once, by the sizes of its inputs. The time of kernels that multiply, convolve or attend has to be
    covered by such calls, since others have no FLOP: kernels in CUDA graphs, or of operators without a rule.
    """
    table = _judged_calls(trace)
    start, end = gpu_window(trace) if trace.devices else (0, 0)
    formats = precision(trace)
    if table.empty or formats is None or end <= start:
        return FlopRate()
    with_flop = table[(table["flop_in_steps"] > 0).to_numpy()]
    covered = int(with_flop["ns_in_steps"].sum())
    whole = formats.tensor_core_eligible_ns
    if not whole or covered < _LEAST_COVERED * whole:
        return FlopRate()
    by_arithmetic = with_flop.groupby("arithmetic")["flop_in_steps"].sum()
    gpu = gpu_of_driver(trace.meta.device_name(trace.devices[0]))
    peak = None if gpu is None else gpu.flops(str(by_arithmetic.idxmax()))
    rate = float(by_arithmetic.sum()) / (end - start)
    return FlopRate(rate / _GFLOP_PER_TFLOP, None if peak is None else 100 * rate * _PER_S / peak)


@once
def _judged_calls(trace: Trace) -> pd.DataFrame:
    """The calls with the same operator and inputs, with their bounds; empty without sizes or a known data sheet."""
    gpu = gpu_of_driver(trace.meta.device_name(trace.devices[0])) if launches_measured(trace) else None
    calls = None if gpu is None else calls_with_sizes(trace)
    if gpu is None or calls is None or calls.empty:
        return pd.DataFrame()
    calls = calls.assign(ns_in_steps=calls["ns"].where(calls["in_steps"], 0))
    groups = calls.groupby(["name", *_LISTS, "tf32"], observed=True, sort=False).agg(
        count=("ns", "size"),
        ns=("ns", "sum"),
        filled_ns=("filled_ns", "sum"),
        count_in_steps=("in_steps", "sum"),
        ns_in_steps=("ns_in_steps", "sum"),
    )
    rows = [_row(group, gpu) for group in groups.reset_index().itertuples(index=False)]
    return pd.DataFrame([row for row in rows if row is not None])


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
            "in_steps": ~outside_steps(trace)[wanted],
        }
    )
    by_op = kernels.groupby("op", sort=True).agg(
        ns=("ns", "sum"), filled_ns=("filled_ns", "sum"), tf32=("tf32", "any"), in_steps=("in_steps", "any")
    )
    ops = trace.ops.iloc[by_op.index.to_numpy()]
    frame = pd.DataFrame({name: ops[name].astype(str).to_numpy() for name in ("name", *_LISTS)})
    frame["ns"] = by_op["ns"].to_numpy(dtype=np.int64)
    frame["tf32"] = by_op["tf32"].to_numpy(dtype=bool)
    frame["filled_ns"] = by_op["filled_ns"].to_numpy(dtype=np.float64)
    frame["in_steps"] = by_op["in_steps"].to_numpy(dtype=bool)
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

    call = recorded_call(group.name, group.types, group.sizes, group.strides, group.settings)
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
        "flop_in_steps": bounds.flop * group.count_in_steps,
        "ns_in_steps": group.ns_in_steps,
        "arithmetic": bounds.arithmetic,
    }
