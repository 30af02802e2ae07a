"""`collectives`, `all_reduce`, `all_reduce_passes`: what a rank communicated, and what of it computation did not hide.

What the analysed GPU did, or where there is none, the host.
"""

from typing import Any

import pandas as pd

from steptrace.analysis.common.analysis import Analysis, records
from steptrace.analysis.communication import collectives
from steptrace.analysis.communication.all_reduce import all_reduce
from steptrace.analysis.communication.host_collectives import host_collectives
from steptrace.analysis.communication.passes import reduce_passes


def tables(analysis: Analysis) -> dict[str, pd.DataFrame]:
    """`collective_times` of the analysed GPU, and `host_collectives` if the host carried out any."""
    of_host = host_collectives(analysis.trace)
    found = {"host_collectives": of_host} if len(of_host) else {}
    if analysis.device is not None:
        found["collective_times"] = collectives.collective_times(analysis.trace, analysis.device)
    return found


def record(analysis: Analysis) -> dict[str, Any]:
    """The collectives by name and by step, null where nothing could have measured any; and the all-reduces."""
    times = analysis.tables.get("collective_times")
    if times is None and "host_collectives" in analysis.tables:
        times = analysis.tables["host_collectives"].assign(group=None)
    if times is None:
        return {"collectives": None, "all_reduce": None, "all_reduce_passes": None}
    return {
        "collectives": {
            "count": len(times),
            "by_name": records(collectives.collectives_by_name(times)),
            "by_step": records(collectives.collectives_by_step(times, analysis.trace)),
        },
        "all_reduce": _all_reduce(analysis),
        "all_reduce_passes": _passes(analysis),
    }


def _all_reduce(analysis: Analysis) -> dict[str, Any] | None:
    """The all-reduces of the trace, each instant counted once; null without any, per step null without steps."""
    found, by_step = all_reduce(analysis.trace, analysis.device)
    if found is None:
        return None
    figures = {
        "count": found.count,
        "bytes": found.bytes,
        "measured_ns": found.measured_ns,
        "exposed_ns": found.exposed_ns,
    }
    per_step = {
        f"{name}_per_step": None if value is None or found.steps is None else value / found.steps
        for name, value in figures.items()
    }
    return {"source": found.source, **figures, "overlap": found.overlap, **per_step, "by_step": records(by_step)}


def _passes(analysis: Analysis) -> dict[str, Any] | None:
    """All-reduces of gradients before the last pass of a step, over all steps; null where no label tells passes."""
    found = reduce_passes(analysis.trace, analysis.device)
    if found is None:
        return None
    redundant = {"count": found.count, "bytes": found.bytes, "measured_ns": found.measured_ns}
    return {"passes_per_step": found.passes_per_step, "redundant": redundant}
