"""The first look at a trace: how long a step takes, where that time goes, and what takes it.

The parts are those of `steptrace.analysis.overview.parts` under the names of the first page: each instant of the window
counts once, so that they add up to it exactly. A trace without steps is one window, its GPU's span, and has no step
time.
"""

from typing import Any, Final

import pandas as pd
from msgspec.structs import asdict

from steptrace import schema
from steptrace.analysis.common.busy import gpu_time
from steptrace.analysis.common.steps import is_own_operator
from steptrace.analysis.overview.parts import parts_of_window
from steptrace.documents.rows import TopOperator, table_of
from steptrace.documents.summary import DeviceTime, GpuTime, Overview
from steptrace.trace.model import Trace

#: The parts with a GPU, by their names in `steptrace.analysis.overview.parts`.
PART_NAMES: Final = {
    "compute": "compute",
    "exposed_memory": "memory",
    "exposed_comm": "comm",
    "idle_loader": "input",
    "idle_sync": "sync",
    "idle_host": "host",
    "idle_dependency": "dependency",
    "idle_unknown": "unknown",
}

TOP_OPERATORS = table_of("top_operators", TopOperator, "name")


def overview(trace: Trace, device: int | None, operators: tuple[TopOperator, ...] = ()) -> Overview | None:
    """Where the time of a trace's steps went; None for a trace with neither steps nor GPU work."""
    divided = parts_of_window(trace, device)
    if divided is None:
        return None
    parts, window = divided.parts_ns, divided.window_ns
    if divided.kind == "gpu":
        parts = {new: parts[old] for old, new in PART_NAMES.items()}
    return Overview(
        kind=divided.kind,
        steps=divided.steps,
        window_ns=window,
        step_ns=window / divided.steps if divided.steps else None,
        parts_ns=parts,
        device_compute_share=parts["compute"] / window if divided.kind == "gpu" and window else None,
        operators=operators,
    )


def gpu(trace: Trace, device: int | None) -> GpuTime:
    """Where the time of a GPU went; without one 0 activities and null."""
    if device is not None:
        return gpu_time(trace, device)
    unmeasured: dict[str, Any] = dict.fromkeys(GpuTime.__struct_fields__)
    return GpuTime(**(unmeasured | {"activities": 0}))


def devices(trace: Trace) -> tuple[DeviceTime, ...]:
    """The same of each GPU."""
    return tuple(DeviceTime(device=device, **asdict(gpu_time(trace, device))) for device in trace.devices)


def top_operators(call_names: pd.DataFrame, by_operator: pd.DataFrame | None) -> pd.DataFrame:
    """The operators by their own time (table `top_operators`): the GPU's, or without a GPU the host's.

    Args:
        call_names: the table `call_names`.
        by_operator: the GPU time by innermost operator (`call_tree.device_time_by` on `op`), None without a GPU. All of
            it gets a row, communication under the operator that launched it, work without one under null: so shares
            are of all GPU time. Operators without GPU work follow. Wrappers of the autograd engine are none of these.
    """
    ops = call_names[(call_names["kind"] == "op").to_numpy(dtype=bool)].astype({"name": object}).set_index("name")
    own = [name for name in ops.index if is_own_operator(name)]
    if by_operator is None:
        names, device = own, pd.array([pd.NA] * len(own), dtype="Int64")
    else:
        launching = [None if pd.isna(name) else str(name) for name in by_operator["op"]]
        known = set(launching)
        others = [name for name in own if name not in known]
        names = [*launching, *others]
        device = pd.array([*by_operator["device_ns"], *([0] * len(others))], dtype="Int64")
    found = ops.reindex(names)
    table = pd.DataFrame(
        {
            "name": pd.Series(names, dtype=object),
            "calls": found["calls"].astype("Int64").array,
            "host_self_ns": found["host_self_ns"].astype("Int64").array,
            "device_self_ns": device,
        }
    )
    by = table["device_self_ns"].fillna(0)
    by = by if by.sum() else table["host_self_ns"].fillna(0)
    table["share"] = by.astype("float64") / max(int(by.sum()), 1)
    table = table.sort_values(["share", "host_self_ns", "name"], ascending=[False, False, True], kind="stable")
    return schema.validate(table.reset_index(drop=True), TOP_OPERATORS)
