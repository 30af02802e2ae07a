"""A trace under the title that its page gives it, with the parts of its time."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from steptrace import format as fmt
from steptrace.documents.summary import Summary, TraceSummary
from steptrace.errors import RecordError


@dataclass(frozen=True)
class TraceView:
    """A trace under the title that the page gives it."""

    title: str
    trace: TraceSummary

    @property
    def has_gpu(self) -> bool:
        """Whether the trace holds GPU work."""
        return self.trace.gpu.activities > 0

    @property
    def steps(self) -> int:
        """How many steps the trace marks."""
        return len(self.trace.steps)

    @property
    def step_ms(self) -> float | None:
        """Duration of a profiled step: the mean on a GPU, else the median.

        Each step lasts until its GPU work is done, so steps overlap where the host runs ahead, and their lengths add up
        to more than their time.
        """
        trace = self.trace
        if trace.overview is not None and trace.overview.kind == "gpu":
            return None if trace.overview.step_ns is None else trace.overview.step_ns / fmt.NS_PER_MS
        return median(step.dur_ns / fmt.NS_PER_MS for step in trace.steps) if trace.steps else None

    @property
    def sync_count(self) -> int | None:
        """Syncs of the whole trace; None where there was nothing to wait for."""
        count = self.trace.syncs.count
        return count if self.has_gpu or count else None


def build(summary: Summary) -> tuple[TraceView, ...]:
    """All traces of a summary.json with their titles, in its order.

    Raises:
        RecordError: the summary holds no traces.
    """
    if not summary.traces:
        raise RecordError("summary holds no traces", expected="the content of a summary.json of `steptrace analyze`")
    titles = _titles(summary.traces)
    return tuple(TraceView(title, trace) for title, trace in zip(titles, summary.traces, strict=True))


def _titles(traces: Sequence[TraceSummary]) -> list[str]:
    """What each trace is called: its file's name, with as many folders as tell it from the others.

    Of several traces the rank, unless two say the same: then they are no ranks of one job.
    """
    paths = [Path(trace.path or "trace") for trace in traces]
    ranks = [trace.rank for trace in traces if trace.rank is not None]
    by_rank = len(traces) > 1 and len(set(ranks)) == len(ranks)
    longest = max(len(path.parts) for path in paths)
    names = next(
        (short for n in range(1, longest) if len(set(short := _last(paths, n))) == len(paths)), _last(paths, longest)
    )
    return [
        f"Rank {trace.rank}" if by_rank and trace.rank is not None else name
        for trace, name in zip(traces, names, strict=True)
    ]


def _last(paths: Sequence[Path], count: int) -> list[str]:
    return ["/".join(path.parts[-count:]) for path in paths]
