"""`gpu`, `devices`, `overview`, `precision`: the first look at a trace, before any detail."""

from typing import Any

from msgspec.structs import asdict, replace

from steptrace.analysis.common import busy
from steptrace.analysis.common.analysis import Analysis, rows
from steptrace.analysis.kernels.precision import precision_of
from steptrace.analysis.overview import measure
from steptrace.documents.rows import KernelFormat, TopOperator
from steptrace.documents.summary import DeviceTime, GpuTime, Overview, Precision
from steptrace.trace.model import Trace

#: How many operators and kernels summary.json lists.
MOST = 10


def gpu(analysis: Analysis) -> GpuTime:
    """Where the time of the analysed GPU went; without a GPU 0 activities and null."""
    if analysis.device is None:
        unmeasured: dict[str, Any] = dict.fromkeys(GpuTime.__struct_fields__)
        return GpuTime(**(unmeasured | {"activities": 0}))
    return busy.gpu_time(analysis.trace, analysis.device)


def devices(trace: Trace) -> tuple[DeviceTime, ...]:
    """The same of each GPU."""
    return tuple(DeviceTime(device=device, **asdict(busy.gpu_time(trace, device))) for device in trace.devices)


def overview(analysis: Analysis) -> Overview | None:
    """Step time and its parts with the top operators; None without steps and GPU."""
    seen = measure.overview(analysis.trace, analysis.device)
    return None if seen is None else replace(seen, operators=analysis.rows("top_operators", TopOperator, MOST))


def precision(analysis: Analysis) -> Precision | None:
    """Number formats, with the kernels with the most time among those eligible for tensor cores; None without a GPU."""
    formats = analysis.tables.get("kernel_formats")
    if formats is None:
        return None
    eligible = formats[formats["eligible"].to_numpy(dtype=bool)].head(MOST)
    return replace(precision_of(formats), kernels=rows(eligible, KernelFormat))
