"""The first look at a trace: how long a step takes, where that time goes, and what takes it.

The parts are those of `steptrace.metrics.parts` under the names of the first page: each instant of the window counts
once, so that they add up to it exactly. A trace without steps is one window, its GPU's span, and has no step time.
"""

from dataclasses import dataclass
from typing import Final, Literal

import pandas as pd

from steptrace import schema
from steptrace.metrics.busy import gpu_time
from steptrace.metrics.idle import CAUSES, idle_by_cause
from steptrace.metrics.parts import step_parts
from steptrace.metrics.steps import own_operator_names
from steptrace.schema.gpu import TOP_OPERATORS
from steptrace.trace.model import Trace

#: The parts with a GPU, by their names in `steptrace.metrics.parts`.
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


@dataclass(frozen=True)
class Overview:
    """`step_ns` is the mean of the steps' time, None without steps; `parts_ns` add up to `window_ns`.

    `device_compute_share` is the share of the window in which the GPU computed, None without a GPU.
    """

    kind: Literal["gpu", "host"]
    steps: int
    window_ns: int
    step_ns: float | None
    parts_ns: dict[str, int]
    device_compute_share: float | None


def overview(trace: Trace, device: int | None) -> Overview | None:
    """Where the time of a trace's steps went; None for a trace with neither steps nor GPU work."""
    divided = step_parts(trace, device)
    if divided is None:
        return None if device is None else _whole_trace(trace, device)
    parts = divided.parts_ns
    if divided.kind == "gpu":
        parts = {new: parts[old] for old, new in PART_NAMES.items()}
    window = divided.window_ns
    return Overview(
        kind=divided.kind,
        steps=divided.steps,
        window_ns=window,
        step_ns=window / divided.steps,
        parts_ns=parts,
        device_compute_share=parts["compute"] / window if divided.kind == "gpu" and window else None,
    )


def _whole_trace(trace: Trace, device: int) -> Overview:
    gpu = gpu_time(trace, device)
    causes = idle_by_cause(trace, device)
    parts = {"compute": gpu.compute_ns, "exposed_memory": gpu.exposed_memory_ns, "exposed_comm": gpu.exposed_comm_ns}
    parts |= {f"idle_{cause}": causes[cause] for cause in CAUSES}
    return Overview(
        kind="gpu",
        steps=0,
        window_ns=gpu.span_ns,
        step_ns=None,
        parts_ns={new: parts[old] for old, new in PART_NAMES.items()},
        device_compute_share=gpu.compute_ns / gpu.span_ns if gpu.span_ns else None,
    )


def top_operators(call_names: pd.DataFrame) -> pd.DataFrame:
    """The operators of a table `call_names` by their own time (table `top_operators`).

    The GPU's time of what they launched themselves goes first, or, without a GPU, their own host time. Wrappers of the
    autograd engine are none.
    """
    rows = call_names[(call_names["kind"] == "op").to_numpy(dtype=bool)]
    rows = rows[own_operator_names(rows["name"])]
    table = pd.DataFrame(
        {
            "name": rows["name"].astype(object),
            "calls": rows["calls"],
            "host_self_ns": rows["host_self_ns"],
            "device_self_ns": rows["device_self_ns"].astype("Int64"),
        }
    )
    device = table["device_self_ns"].fillna(0)
    by = device if device.sum() else table["host_self_ns"]
    table["share"] = by.astype("float64") / max(int(by.sum()), 1)
    table = table.sort_values(["share", "host_self_ns", "name"], ascending=[False, False, True], kind="stable")
    return schema.validate(table.reset_index(drop=True), TOP_OPERATORS)
