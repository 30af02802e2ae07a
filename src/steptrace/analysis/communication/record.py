"""`collectives`, `all_reduce`, `all_reduce_passes`: what a rank communicated, and what of it computation did not hide.

What the analysed GPU did, or where there is none, the host.
"""

import pandas as pd

from steptrace.analysis.common.analysis import Analysis, rows
from steptrace.analysis.communication.all_reduce import all_reduce
from steptrace.analysis.communication.collectives import collectives_by_name, collectives_by_step
from steptrace.analysis.communication.passes import reduce_passes
from steptrace.documents.summary import AllReduce, CollectiveName, Collectives, CollectivesOfStep, ReducePasses


def collectives(analysis: Analysis) -> Collectives | None:
    """The collectives by name and by step; None where nothing could have measured any."""
    times = _times(analysis)
    if times is None:
        return None
    return Collectives(
        count=len(times),
        by_name=rows(collectives_by_name(times), CollectiveName),
        by_step=rows(collectives_by_step(times, analysis.trace), CollectivesOfStep),
    )


def all_reduces(analysis: Analysis) -> AllReduce | None:
    """The all-reduces of the trace, each instant counted once; None without any."""
    return None if _times(analysis) is None else all_reduce(analysis.trace, analysis.device)


def passes(analysis: Analysis) -> ReducePasses | None:
    """All-reduces of gradients before the last pass of a step, over all steps; None where no label tells passes."""
    return None if _times(analysis) is None else reduce_passes(analysis.trace, analysis.device)


def _times(analysis: Analysis) -> pd.DataFrame | None:
    of = analysis.tables
    if "collective_times" in of or "host_collectives" not in of:
        return of.get("collective_times")
    return of["host_collectives"].assign(group=None)
