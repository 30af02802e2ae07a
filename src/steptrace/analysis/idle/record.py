"""`idle`, `host_gaps`: why the GPU idled, per stream as Holistic Trace Analysis sorts it, and per gap of the device."""

from steptrace.analysis.common.analysis import Analysis, rows
from steptrace.analysis.idle.gaps import host_gaps
from steptrace.analysis.idle.measure import gap_endings, idle_by_cause
from steptrace.documents.rows import IdleEnding, IdleGap, StreamIdle
from steptrace.documents.summary import HostGaps, Idle

#: How many gaps, and what ended gaps, summary.json lists; the table `idle_gaps` has all.
MOST = 20


def idle(analysis: Analysis) -> Idle:
    """Idle time by stream, by cause, by what ended the gaps, and the longest gaps."""
    by_stream = analysis.rows("idle_by_stream", StreamIdle)
    if analysis.device is None:
        return Idle(by_stream=by_stream, by_cause=None, gaps=None, ended_by=(), longest=())
    gaps = analysis.tables["idle_gaps"]
    return Idle(
        by_stream=by_stream,
        by_cause=idle_by_cause(analysis.trace, analysis.device),
        # One activity has nothing between it and another: no gap was there to be found.
        gaps=len(gaps) if (analysis.trace.kernels["device"] == analysis.device).sum() > 1 else None,
        ended_by=rows(gap_endings(gaps).head(MOST), IdleEnding),
        longest=rows(gaps.sort_values(["dur", "ts"], ascending=[False, True]).head(MOST), IdleGap),
    )


def gaps_of_host(analysis: Analysis) -> HostGaps | None:
    """The longest gaps that only the host explains, with their calls; None without a GPU."""
    if analysis.device is None:
        return None
    return host_gaps(analysis.trace, analysis.device, analysis.tables["idle_gaps"])
