"""One side of a diff: its traces, and what `steptrace run` has measured and predicted beside them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from steptrace.analysis import load_trace, summarize_trace
from steptrace.analysis.build import light, of_ranks_together
from steptrace.analysis.common.labels import label_times
from steptrace.analysis.overview import top_operators
from steptrace.analysis.program import line_times
from steptrace.diff.runs import ProgramRuns, runs_at
from steptrace.documents.base import is_present, read
from steptrace.documents.labels import Label
from steptrace.documents.overview import TopOperator
from steptrace.documents.program import LineTime
from steptrace.documents.subject import Absence
from steptrace.documents.summary import Summary, TraceSummary
from steptrace.documents.table import rows
from steptrace.errors import RecordError, TraceError
from steptrace.trace.files import find_traces, has_whole_traces
from steptrace.trace.model import Trace
from steptrace.trace.read import read_undamaged, whole_and_damaged

#: Reasons why rows are not known. With any other reason there are none.
_UNKNOWN: Final[frozenset[Absence]] = frozenset(
    {"gpu_records_lost", "no_runtime_calls", "launches_lost", "waits_lost", "unknown_runtime"}
)


@dataclass(frozen=True)
class Side:
    """One side of a diff.

    Attributes:
        traces: what its traces say; empty where no step was profiled.
        operators: all rows of their operators.
        runs: of a result of `steptrace run`, or of a study's variant, what was measured without the profiler.
        damaged: the traces of a folder that cannot be read, each with why.
    """

    traces: tuple[TraceSummary, ...]
    operators: tuple[TopOperator, ...]
    runs: ProgramRuns | None = None
    damaged: Mapping[Path, TraceError] = field(default_factory=dict)

    @property
    def steps(self) -> int:
        """Steps of all traces; 0 if a trace marks none."""
        steps = [trace.quality.steps or 0 for trace in self.traces]
        return sum(steps) if all(steps) else 0

    @property
    def has_gpu(self) -> bool:
        """Whether there are traces, and every one holds GPU work."""
        return bool(self.traces) and all(trace.gpu.activities for trace in self.traces)

    @property
    def has_lines(self) -> bool:
        """Whether every trace knows which lines of the program its work comes from."""
        return all(
            trace.program.by_line is not None and (trace.program.stacks or trace.program.by_line)
            for trace in self.traces
        )

    @property
    def has_syncs(self) -> bool:
        """Whether every trace would show syncs."""
        return all(trace.syncs.count is not None for trace in self.traces)

    def has_table(self, name: str) -> bool:
        """Whether no trace lacks what the rows of a subject follow from; a table without such a reason is empty."""
        return not any(trace.absent.get(name) in _UNKNOWN for trace in self.traces)


def read_sides(a: Sequence[str | Path], b: Sequence[str | Path]) -> tuple[Side, Side]:
    """Read the two sides of a diff from lists of files or folders.

    A folder that `steptrace run` wrote, or that of a study's variant, stands for its traces and its measurements. One
    that `steptrace analyze` wrote stands for the traces that it describes, if they are still there. Of any other folder
    the traces are read even if one of them is damaged.

    Raises:
        TraceError: a path is missing, or a trace cannot be read that was named, or that is a folder's only one; or a
            trace has changed since `steptrace analyze` described it.
        RecordError: what a run left cannot be read.
    """
    runs = [_runs_of(side) for side in (a, b)]
    described = [{} if run else _described_in(side) for side, run in zip((a, b), runs, strict=True)]
    paths = [
        list(run.traces) if run else list(known) or find_traces(side)
        for side, run, known in zip((a, b), runs, described, strict=True)
    ]
    # Both sides at once, so that two large traces are read in parallel.
    named = [*(paths[0] if runs[0] else a), *(paths[1] if runs[1] else b)]
    done = read_undamaged(_read, paths[0] + paths[1], named=named)
    digests = described[0] | described[1]
    for path, outcome in zip(paths[0] + paths[1], done, strict=True):
        if not isinstance(outcome, TraceError) and digests.get(path, outcome[1].sha256) != outcome[1].sha256:
            raise TraceError(
                "the trace has changed since `steptrace analyze` described it",
                where=path,
                next_step="analyze it again, or name the trace itself",
            )
    first = _side(paths[0], done[: len(paths[0])], runs[0])
    return first, _side(paths[1], done[len(paths[0]) :], runs[1])


def _runs_of(side: Sequence[str | Path]) -> ProgramRuns | None:
    return runs_at(Path(side[0])) if len(side) == 1 else None


def _described_in(side: Sequence[str | Path]) -> dict[Path, str]:
    """The traces that the one folder of a side describes, with their digests.

    Empty where it describes none, where one of them is gone, and where the folder holds traces itself.
    """
    folder = Path(side[0])
    summary = folder / "summary.json"
    try:
        if len(side) != 1 or not summary.is_file() or has_whole_traces(folder) or not is_present(summary, Summary):
            return {}
        traces = read(summary, Summary).traces
    except (RecordError, OSError, ValueError):  # names that the system rejects are named by `find_traces`
        return {}
    found = {}
    for trace in traces:
        # As it was named where the command ran, which often was the folder's own place.
        path = next((p for p in (Path(trace.path), folder.parent / trace.path) if p.is_file()), None)
        if path is None:
            return {}
        found[path] = trace.sha256
    return found


#: A trace as the comparison of ranks needs it, its summary, and its operators.
_Read = tuple[Trace, TraceSummary, tuple[TopOperator, ...]]


def _read(path: Path) -> _Read:
    """A trace, with all labels and lines in its summary."""
    trace = load_trace(path)
    summary = replace(summarize_trace(trace), labels=rows(label_times(trace), Label))
    if summary.program.by_line is not None:
        program = replace(summary.program, by_line=rows(line_times(trace), LineTime))
        summary = replace(summary, program=program)
    operators = rows(top_operators(trace), TopOperator)
    return light(trace), summary, operators


def _side(paths: Sequence[Path], outcomes: Sequence[_Read | TraceError], runs: ProgramRuns | None) -> Side:
    done, damaged = whole_and_damaged(paths, outcomes)
    operators = tuple(row for *_, rows in done for row in rows if row.name)
    summaries, _ = of_ranks_together([trace for trace, *_ in done], tuple(summary for _, summary, _ in done))
    return Side(summaries, operators, runs, damaged)
