"""One trace, or those of several ranks, as an object with DataFrames."""

from collections.abc import Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

import pandas as pd

from steptrace import format as fmt
from steptrace.documents.finding import Finding
from steptrace.documents.summary import Summary, TraceSummary

if TYPE_CHECKING:
    from steptrace.trace.model import Trace

#: The table of each DataFrame of a trace, by its attribute.
TABLE_OF: Final = {
    "steps": "step_times",
    "syncs": "sync_costs",
    "sync_sites": "sync_sites",
    "kernels": "kernel_names",
    "idle": "idle_gaps",
    "operators": "top_operators",
    "launches": "launch_times",
    "copies": "copies",
    "collectives": "collective_times",
    "labels": "label_times",
}


class LoadedTrace:
    """One trace, or the traces of several ranks. Made by `load_trace`.

    With several ranks each DataFrame holds the rows of all of them, and its first column is `rank`.

    Attributes:
        document: the content of summary.json: one entry per trace, and the figures across ranks.
        summary: the entry of the trace, or of the first rank: its figures, and its `findings`.
    """

    document: Summary
    summary: TraceSummary

    def __init__(self, document: Summary, traces: "Sequence[Trace]") -> None:
        self.document = document
        self.summary = document.traces[0]
        self._traces = traces

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings of all traces, most costly first within each."""
        return tuple(finding for entry in self.document.traces for finding in entry.findings)

    @property
    def tables(self) -> tuple[str, ...]:
        """The names that `table` takes."""
        from steptrace.analysis import TABLES as COMPUTED
        from steptrace.trace.rows import TABLES

        return tuple(sorted({*COMPUTED, *TABLES}))

    def table(self, name: str) -> pd.DataFrame:
        """A table by name, as `steptrace analyze` writes it to tables/NAME.parquet.

        Args:
            name: one of `tables`.

        Raises:
            KeyError: there is no such table.
        """
        from steptrace.analysis import TABLES as COMPUTED
        from steptrace.trace.rows import TABLES

        if name not in COMPUTED and name not in TABLES:
            raise KeyError(f"there is no table {name!r}; the tables are {', '.join(self.tables)}")
        return self._together(
            [COMPUTED[name](trace) if name in COMPUTED else getattr(trace, name) for trace in self._traces]
        )

    def _together(self, frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
        """The rows of all traces, those of several with their rank; the caller's own copy."""
        if len(frames) == 1:
            table: pd.DataFrame = frames[0].copy()
            return table
        ranks = [place if trace.rank is None else trace.rank for place, trace in enumerate(self._traces)]
        together: pd.DataFrame = pd.concat(
            [frame.assign(rank=rank)[["rank", *frame.columns]] for rank, frame in zip(ranks, frames, strict=True)],
            ignore_index=True,
        )
        return together

    @property
    def steps(self) -> pd.DataFrame:
        """A row per step: start, length, and the GPU's time: compute, exposed communication and memory, idle."""
        return self.table(TABLE_OF["steps"])

    @property
    def syncs(self) -> pd.DataFrame:
        """A row per sync: the host's blocked time, the GPU's exposed idle time, step, line, operator and label."""
        return self.table(TABLE_OF["syncs"])

    @property
    def sync_sites(self) -> pd.DataFrame:
        """A row per line that syncs: count per step, blocked time, and at most how much its removal saves."""
        return self.table(TABLE_OF["sync_sites"])

    @property
    def kernels(self) -> pd.DataFrame:
        """A row per kernel name: class, count, and total, mean, median, shortest and longest time."""
        return self.table(TABLE_OF["kernels"])

    def kernels_of(self, operator: str) -> pd.DataFrame:
        """A row per GPU activity that the calls of an operator launched, those of operators within it included.

        Columns: `kernel` (row of table `kernels`), `name`, `op` (the innermost operator), `call`, `step` (row of table
        `steps`), `stream`, `dur_ns`, `delay_ns` (from the end of the launching call to the start of the activity, 0 if
        it began first), `file` and `line`. Times are whole nanoseconds.

        Args:
            operator: its name, such as "aten::linear".

        Raises:
            KeyError: no operator of this name is in the trace.
        """
        from steptrace.analysis.operator_kernels import operator_kernels

        known = {name for trace in self._traces for name in trace.ops["name"].unique()}
        if operator not in known:
            close = get_close_matches(operator, known)
            raise KeyError(
                f"no operator {operator!r} is in the trace"
                + (f"; it has {fmt.enumeration(close)}" if close else "; table('ops') lists all")
            )
        return self._together([operator_kernels(trace, operator) for trace in self._traces])

    @property
    def idle(self) -> pd.DataFrame:
        """A row per idle stretch of the GPU: start, length, cause, and the kernel that ended it."""
        return self.table(TABLE_OF["idle"])

    @property
    def operators(self) -> pd.DataFrame:
        """A row per operator name: calls, and its own time on host and device."""
        return self.table(TABLE_OF["operators"])

    @property
    def launches(self) -> pd.DataFrame:
        """A row per launch: host time, device time, and the delay from one to the other by its parts."""
        return self.table(TABLE_OF["launches"])

    @property
    def copies(self) -> pd.DataFrame:
        """A row per kind of copy: count, bytes, and bandwidth."""
        return self.table(TABLE_OF["copies"])

    @property
    def collectives(self) -> pd.DataFrame:
        """A row per collective: kind, group, time, exposed time, and bytes."""
        return self.table(TABLE_OF["collectives"])

    @property
    def labels(self) -> pd.DataFrame:
        """A row per `record_function` label: count, host time and device time."""
        return self.table(TABLE_OF["labels"])

    def __repr__(self) -> str:
        return f"<LoadedTrace of {', '.join(entry.path for entry in self.document.traces)}>"

    def __str__(self) -> str:
        """What `steptrace analyze` prints."""
        from steptrace.report.trace.answer import in_words

        return in_words(self.document)
