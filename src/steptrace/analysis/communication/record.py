"""`collectives`, `all_reduce`, `all_reduce_passes` of a rank, what computation did not hide; `ranks`: how these differ.

A rank's are those of the analysed GPU, or where there is none, of the host.
"""

from collections.abc import Iterable, Mapping, Sequence
from statistics import median

import pandas as pd

from steptrace.analysis.common.analysis import Analysis, rows
from steptrace.analysis.communication import ranks as measure
from steptrace.analysis.communication.all_reduce import all_reduce, reduce_passes
from steptrace.analysis.communication.collectives import collectives_by_name, collectives_by_step
from steptrace.documents.run import Communication
from steptrace.documents.summary import (
    AllReduce,
    CollectiveName,
    Collectives,
    CollectivesOfStep,
    MatchedName,
    RankAllReduce,
    RankCollectives,
    RankKernel,
    Ranks,
    RankWait,
    ReducePasses,
    TraceSummary,
)
from steptrace.errors import RecordError
from steptrace.record import read_communication

#: How many kernels summary.json compares across ranks; `rank_kernels.parquet` has all.
MOST_KERNELS = 50

_PER_STEP = ("count", "bytes", "measured_ns", "exposed_ns")


def tables(analyses: list[Analysis]) -> dict[str, pd.DataFrame]:
    """`rank_waits`, `matched_collectives` and `rank_kernels`."""
    traces = measure.by_rank([analysis.trace for analysis in analyses])
    matched, waits = measure.matched_collectives(traces)
    return {"rank_waits": waits, "matched_collectives": matched, "rank_kernels": measure.rank_kernels(traces)}


def ranks(analyses: list[Analysis], traces: Sequence[TraceSummary], of: Mapping[str, pd.DataFrame]) -> Ranks:
    """Of `tables` who waited for whom, and the kernels with the most time; `straggler` None if no rank stands out."""
    waits, matched = of["rank_waits"], of["matched_collectives"]
    by_name = matched.groupby(["collective", "group"], dropna=False, sort=True)
    waited = by_name.agg(count=("match", "nunique"), wait_ns=("wait_ns", "sum")).reset_index()
    return Ranks(
        count=len(analyses),
        straggler=measure.straggler(waits),
        waits=rows(waits, RankWait),
        collectives=RankCollectives(
            total=int(waits["collectives"].sum()),
            matched=len(matched),
            matched_by={str(how): int(n) for how, n in matched["matched_by"].value_counts().sort_index().items()},
            by_name=rows(waited.sort_values("wait_ns", ascending=False, kind="stable"), MatchedName),
        ),
        kernels=rows(of["rank_kernels"].head(MOST_KERNELS), RankKernel),
        all_reduce=_all_reduce(traces, waits, _communication(analyses)),
    )


def _all_reduce(
    traces: Sequence[TraceSummary], waits: pd.DataFrame, said: Communication | None
) -> RankAllReduce | None:
    """Per step, medians over the ranks, beside what it should take by the run's own communication.json; None without.

    A rank waits for the others inside its collectives: `wait_ns_per_step` is their mean, each instant once.
    """
    found = [one for trace in traces if (one := trace.all_reduce) is not None and one.by_step]
    if not found:
        return None
    waited = waits["wait_ns"].dropna()
    overlaps = [one.overlap for one in found if one.overlap is not None]
    return RankAllReduce(
        source=found[0].source,
        **{f"{name}_per_step": _median(getattr(one, f"{name}_per_step") for one in found) for name in _PER_STEP},
        overlap=median(overlaps) if overlaps else None,
        wait_ns_per_step=float(waited.mean()) / median(len(one.by_step) for one in found) if len(waited) else None,
        expected_ns=None if said is None else said.expected_ns,
        simplified_ns=None if said is None else said.simplified_ns,
        bus_bytes_per_s=None if said is None else said.bus_bytes_per_s,
    )


def _median(values: Iterable[float | None]) -> float | None:
    """The median over the ranks; None if it is not known of one."""
    known = list(values)
    return None if None in known else float(median(known))  # type: ignore[type-var,arg-type]


def _communication(analyses: Sequence[Analysis]) -> Communication | None:
    """What the run recorded beside its traces; None for traces of others."""
    try:
        return read_communication(analyses[0].path.parent)
    except RecordError:
        return None  # an extra: the traces say what they say without it


def collectives(analysis: Analysis) -> Collectives | None:
    """The collectives by name and by step; None where nothing could have measured any."""
    times = _times(analysis)
    if times is None:
        return None
    return Collectives(
        count=len(times),
        by_name=rows(collectives_by_name(times), CollectiveName) if len(times) else (),
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
