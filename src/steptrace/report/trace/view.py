"""A trace under the title that its page gives it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from steptrace.documents.summary import Summary, TraceSummary
from steptrace.errors import RecordError
from steptrace.findings.headline import profiled_step_ms, span_ms


@dataclass(frozen=True)
class TraceView:
    """A trace under the title that the page gives it."""

    title: str
    trace: TraceSummary

    @property
    def has_gpu(self) -> bool:
        """Whether the trace holds figures of a GPU."""
        return self.trace.gpu_measured

    @property
    def steps(self) -> int:
        """How many steps the trace marks."""
        return len(self.trace.steps)

    @property
    def step_ms(self) -> float | None:
        """The mean profiled step: the length of a step on this page, which all its shares are of; None without steps.

        It is the steps' time over their number. Their spans can be longer, see `documents.headline.StepLengths`.
        """
        return profiled_step_ms(self.trace)

    @property
    def span_ms(self) -> float | None:
        """The mean span of the steps, from a step's start on the host to the end of its work; None without steps."""
        return span_ms(self.trace)


def trace_views(summary: Summary) -> tuple[TraceView, ...]:
    """All traces of a summary.json with their titles, in its order.

    Raises:
        RecordError: the summary holds no traces.
    """
    if not summary.traces:
        raise RecordError("summary holds no traces", expected="the content of a summary.json of `steptrace analyze`")
    titles = _titles(summary.traces)
    return tuple(TraceView(title, trace) for title, trace in zip(titles, summary.traces, strict=True))


def title_of_several(traces: Sequence[TraceView]) -> str:
    """How many ranks, or traces, there are, and the folder that holds all of them."""
    ranks = {view.trace.rank for view in traces}
    what = "ranks" if None not in ranks and len(ranks) == len(traces) else "traces"
    folders = {Path(view.trace.path).parent.name if view.trace.path else "" for view in traces}
    folder = folders.pop() if len(folders) == 1 else ""
    return f"{len(traces)} {what} in {folder}" if folder else f"{len(traces)} {what}"


def _titles(traces: Sequence[TraceSummary]) -> list[str]:
    """The title of each trace: its rank, or its file's name with the folders that distinguish it from the others.

    A rank is the title where there are several traces, and each is of another rank: otherwise they are not ranks of
    one job.
    """
    ranks = [trace.rank for trace in traces if trace.rank is not None]
    by_rank = len(traces) > 1 and len(set(ranks)) == len(ranks)
    names = _distinct_names([Path(trace.path or "trace") for trace in traces])
    return [
        f"Rank {trace.rank}" if by_rank and trace.rank is not None else name
        for trace, name in zip(traces, names, strict=True)
    ]


def _distinct_names(paths: Sequence[Path]) -> list[str]:
    """The files' names with as many of their folders as make them different; whole paths where nothing does."""
    longest = max(len(path.parts) for path in paths)
    for count in range(1, longest):
        names = _last_parts(paths, count)
        if len(set(names)) == len(paths):
            return names
    return _last_parts(paths, longest)


def _last_parts(paths: Sequence[Path], count: int) -> list[str]:
    return ["/".join(path.parts[-count:]) for path in paths]
