"""steptrace in Python: traces and studies as objects with pandas DataFrames, for notebooks and scripts.

    import steptrace

    trace = steptrace.load_trace("trace.json.gz")      # or a folder of ranks
    trace.syncs, trace.kernels, trace.idle, trace.steps
    trace.summary.findings

    study = steptrace.load_study("results/giou")
    study.step_times, study.syncs, study.estimates
    study.plot_step_times()

Times in DataFrames are integer nanoseconds (`_ns`), or milliseconds (`_ms`) of studies. What was not measured is null.
docs/reference/python.md lists all names; it is made from the docstrings here.
"""

import os
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pandas as pd

from steptrace import format as fmt
from steptrace.documents.base import Document, columns_of, read
from steptrace.documents.comparison import Comparison
from steptrace.documents.finding import Finding
from steptrace.documents.study_rows import (
    StudyStep,
    VariantEstimate,
    VariantGpuUse,
    VariantSite,
    VariantSyncs,
    VariantTimes,
)
from steptrace.documents.summary import Summary, TraceSummary
from steptrace.documents.table import names_of
from steptrace.errors import RecordError
from steptrace.extras import named
from steptrace.words.estimate import reason_words

if TYPE_CHECKING:  # matplotlib is in the extra `lab`
    from matplotlib.axes import Axes

    from steptrace.trace.model import Trace

__all__ = ["LoadedStudy", "LoadedTrace", "load_study", "load_trace"]

_PathLike = str | os.PathLike[str]
_COMPARISON: Final = "comparison.json"
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
#: The type of the rows of each DataFrame of a study, by its attribute. Where there is a row per variant, `variant` is
#: the index.
ROWS_OF_STUDY: Final[dict[str, type[Document]]] = {
    "step_times": VariantTimes,
    "steps": StudyStep,
    "syncs": VariantSyncs,
    "sync_sites": VariantSite,
    "gpu_use": VariantGpuUse,
    "estimates": VariantEstimate,
}


def load_trace(path: _PathLike | Sequence[_PathLike]) -> "LoadedTrace":
    """Read one trace, or the traces of one job's ranks.

    Args:
        path: a trace file of PyTorch's profiler (.json, .json.gz), a folder of them, or several of either.

    Returns:
        What they say. Reading takes as long as `steptrace analyze` without its page.

    Raises:
        TraceError: a path is missing, or a trace cannot be read.

    Example:
        trace = steptrace.load_trace("trace.json.gz")
        trace.syncs.groupby(["file", "line"]).blocked_ns.sum()
    """
    from steptrace.analysis import summarize
    from steptrace.findings import with_trace_findings

    paths = [path] if isinstance(path, str | os.PathLike) else list(path)
    document, traces = summarize([Path(path) for path in paths])
    return LoadedTrace(with_trace_findings(document), traces)


def load_study(path: _PathLike) -> "LoadedStudy":
    """Read the results of a study.

    Args:
        path: the study's folder in results/, or its comparison.json.

    Raises:
        RecordError: there is no comparison.json, or one of another version of steptrace.

    Example:
        steptrace.load_study("results/giou").step_times
    """
    file = Path(path)
    if file.is_dir():
        file = file / _COMPARISON
    return LoadedStudy(read(file, Comparison, next_step="run the study: snakemake --cores all"), file.parent)


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


class LoadedStudy:
    """The results of one study. Made by `load_study`. DataFrames have a row per variant, in the study's order.

    Attributes:
        document: the content of comparison.json.
        folder: where the runs lie.
    """

    document: Comparison
    folder: Path

    def __init__(self, document: Comparison, folder: Path) -> None:
        self.document, self.folder = document, folder

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings of the study."""
        return self.document.findings

    @cached_property
    def step_times(self) -> pd.DataFrame:
        """Unprofiled step times in ms with their 95 % interval, the ratio to the baseline, and the verdict on it."""
        rows = []
        for variant in self.document.variants:
            times, ratio = variant.step_ms, variant.ratio
            rows.append(
                {
                    "variant": variant.name,
                    "status": variant.status,
                    "step_ms": variant.step_time_ms,
                    "low_ms": times and times.low,
                    "high_ms": times and times.high,
                    "p95_ms": times and times.p95,
                    "runs": times.runs if times else 0,
                    "steps": times.steps if times else 0,
                    "ratio": ratio and ratio.value,
                    "ratio_low": ratio and ratio.low,
                    "ratio_high": ratio and ratio.high,
                    "verdict": ratio and ratio.verdict,
                    "equivalence": variant.equivalence.status,
                    "samples_per_s": variant.samples_per_s,
                }
            )
        return _by_variant(rows, VariantTimes)

    @cached_property
    def steps(self) -> pd.DataFrame:
        """A row per step of every run, in the order they ran.

        Raises:
            RecordError: a run's steps.parquet is missing or damaged, as where comparison.json alone was copied.
        """
        from steptrace.run_folder import read_steps

        frames = []
        for variant in self.document.variants:
            for run in variant.runs:
                if run.status == "ok":
                    table = read_steps(self.folder / variant.name / f"run{run.repeat}")
                    table.insert(0, "run", run.repeat)
                    table.insert(0, "variant", variant.name)
                    frames.append(table)
        names = ["variant", "run", *(name for name in names_of(StudyStep) if name not in ("variant", "run"))]
        if not frames:
            return pd.DataFrame(columns=names)
        steps = pd.concat(frames, ignore_index=True)
        return steps.assign(step_ms=steps["step_ns"] / 1e6)[names]

    @cached_property
    def syncs(self) -> pd.DataFrame:
        """Syncs per step: measured in the trace, predicted, and warned of by PyTorch's own check."""
        rows = [
            {
                "variant": variant.name,
                "measured_per_step": variant.syncs.measured_per_step,
                "predicted_per_step": variant.syncs.predicted_per_step,
                "warned_per_step": variant.syncs.warned_per_step,
                "not_judged": variant.syncs.predicted_not_judged,
            }
            for variant in self.document.variants
        ]
        return _by_variant(rows, VariantSyncs)

    @cached_property
    def sync_sites(self) -> pd.DataFrame:
        """A row per variant and line that syncs, by measurement where there is one, else by prediction."""
        rows = [
            {
                "variant": variant.name,
                "basis": basis,
                "file": site.file,
                "line": site.line,
                "operator": site.op,
                "kind": site.kind,
                "count_per_step": site.count_per_step,
                "code": site.code,
            }
            for variant in self.document.variants
            for basis, sites in [
                ("predicted", variant.predicted_sites)
                if variant.syncs.measured_per_step is None
                else ("measured", variant.sync_sites)
            ]
            for site in sites
        ]
        return _typed(rows, VariantSite)

    @cached_property
    def gpu_use(self) -> pd.DataFrame:
        """GPU utilisation in percent, in its three senses: busy in the trace, sampled by NVML, weighted by SMs."""
        rows = []
        for variant in self.document.variants:
            overview = variant.overview
            rows.append(
                {
                    "variant": variant.name,
                    "busy_pct": variant.gpu_busy_pct,
                    "nvml_pct": variant.nvml_util_pct,
                    "sm_weighted_pct": variant.sm_weighted_pct,
                    "joules_per_step": variant.joules_per_step,
                    "traced_steps": overview.steps if overview else 0,
                }
            )
        return _by_variant(rows, VariantGpuUse)

    @cached_property
    def estimates(self) -> pd.DataFrame:
        """Estimates for GPUs that are not there, a row per variant and GPU: step time in ms as a band, and memory.

        An estimate is never a measurement: the band is where 90 % of the possible GPUs' step times lie.
        """
        rows = [
            {
                "variant": variant.name,
                "gpu": estimate.gpu,
                "low_ms": estimate.step_ms and estimate.step_ms[0],
                "high_ms": estimate.step_ms and estimate.step_ms[1],
                "limited_by": estimate.limited_by,
                "launches": estimate.launches,
                "peak_memory_bytes": estimate.peak_memory_bytes,
                "fits": estimate.fits,
                "reason": reason_words(estimate) or None,
            }
            for variant in self.document.variants
            for estimate in variant.estimates
        ]
        return _typed(rows, VariantEstimate)

    def plot_step_times(self, ax: "Axes | None" = None) -> "Axes":
        """Draw each variant's step time with its interval, over the medians of its single runs.

        Args:
            ax: where to draw; default: new axes.

        Returns:
            The axes.

        Raises:
            RecordError: no variant was measured.
        """
        times = self.step_times.dropna(subset=["step_ms"])
        if times.empty:
            raise RecordError("no variant has step times", where=self.folder, next_step="see the variants' logs")
        ax = _axes(ax, len(times))
        for place, (name, row) in enumerate(times.iterrows()):
            timed = self._medians_of_runs(str(name))
            ax.plot(timed, [place] * len(timed), "o", color="0.7", markersize=5, zorder=1)
            if pd.notna(row["low_ms"]):
                ax.plot([row["low_ms"], row["high_ms"]], [place, place], color="C0", linewidth=3, alpha=0.5, zorder=2)
            ax.plot(row["step_ms"], place, "D", color="C0", zorder=3)
        ax.set_xlabel("step time in ms: all runs, 95 % interval; grey: single runs")
        return _labelled(ax, list(map(str, times.index)), self.document.title)

    def plot_syncs(self, ax: "Axes | None" = None) -> "Axes":
        """Draw the syncs per step of each variant: measured where there is a measurement, else predicted.

        Args:
            ax: where to draw; default: new axes.

        Returns:
            The axes.
        """
        counts = self.syncs["measured_per_step"].fillna(self.syncs["predicted_per_step"])
        ax = _axes(ax, len(counts))
        ax.barh(range(len(counts)), counts.to_numpy(dtype=float), color="C1")
        measured = self.syncs["measured_per_step"].notna()
        basis = "measured" if measured.all() else "measured, else predicted" if measured.any() else "predicted"
        ax.set_xlabel(f"syncs per step, {basis}")
        return _labelled(ax, list(map(str, counts.index)), self.document.title)

    def plot_gpu_use(self, ax: "Axes | None" = None) -> "Axes":
        """Draw the GPU utilisation of each variant in its three senses, in percent.

        Args:
            ax: where to draw; default: new axes.

        Returns:
            The axes. Without a GPU they say that nothing was measured.
        """
        shares = self.gpu_use[["busy_pct", "nvml_pct", "sm_weighted_pct"]]
        ax = _axes(ax, len(shares))
        if shares.isna().all(axis=None):
            ax.text(
                0.5, 0.5, "GPU utilisation: not measured (no GPU)", ha="center", va="center", transform=ax.transAxes
            )
            ax.set_xticks([])
            return _labelled(ax, list(map(str, shares.index)), self.document.title)
        names = {"busy_pct": "busy in the trace", "nvml_pct": "NVML, sampled", "sm_weighted_pct": "weighted by SMs"}
        for number, (column, name) in enumerate(names.items()):
            places = [place + (number - 1) * 0.25 for place in range(len(shares))]
            ax.barh(places, shares[column].to_numpy(dtype=float), height=0.22, label=name)
        ax.set_xlim(0, 100)
        ax.set_xlabel("% of the step")
        ax.legend(fontsize="small")
        return _labelled(ax, list(map(str, shares.index)), self.document.title)

    def _medians_of_runs(self, name: str) -> list[float]:
        """The median timed step of each run of a variant, in ms; none where the runs' tables are not there."""
        try:
            steps = self.steps
        except RecordError:  # comparison.json alone was copied here
            return []
        timed = steps[(steps["variant"] == name) & (steps["phase"] == "timed")]
        return [float(value) for value in timed.groupby("run")["step_ms"].median()]

    def __repr__(self) -> str:
        return f"<LoadedStudy {self.document.study} in {self.folder}>"

    def __str__(self) -> str:
        """Its question, where it was measured, and a line per variant: step time, syncs, verdict."""
        document = self.document
        head = [
            document.title,
            document.question,
            f"{document.machine or 'nothing was measured'}, scale {document.scale}",
        ]
        rows = []
        for variant in document.variants:
            times, syncs = variant.step_ms, variant.syncs
            count = syncs.predicted_per_step if syncs.measured_per_step is None else syncs.measured_per_step
            rows.append(
                (
                    variant.name,
                    "not measured" if times is None else fmt.step_time(times.value, times.low, times.high)[0],
                    "-" if count is None else fmt.count(count),
                    "predicted" if syncs.measured_per_step is None else "measured",
                    variant.verdict or ("baseline" if variant.name == document.baseline else "-"),
                )
            )
        return "\n".join([*head, *fmt.columns(("variant", "step", "syncs", "", "verdict"), rows)])


def _by_variant(rows: Sequence[Mapping[str, Any]], kind: type[Document]) -> pd.DataFrame:
    """Rows of a kind by variant."""
    return _typed(rows, kind).set_index("variant")


def _typed(rows: Sequence[Mapping[str, Any]], kind: type[Document]) -> pd.DataFrame:
    """Rows of a kind; a number that was not measured is NaN."""
    columns = columns_of(kind)
    frame = pd.DataFrame(list(rows), columns=[column.name for column in columns])
    numbers = [column.name for column in columns if column.dtype == "float64"]
    counts = [column.name for column in columns if column.dtype == "int64" and column.nullable]
    return frame.astype(dict.fromkeys(numbers, float) | dict.fromkeys(counts, "Int64"))


def _axes(ax: "Axes | None", rows: int) -> "Axes":
    if ax is not None:
        return ax
    try:
        from matplotlib import pyplot
    except ModuleNotFoundError as error:
        raise named(error) from None
    _, ax = pyplot.subplots(figsize=(8, 1.2 + 0.4 * rows), layout="constrained")
    return ax


def _labelled(ax: "Axes", names: Sequence[str], title: str) -> "Axes":
    """One name per row, the first at the top."""
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.set_title(title)
    return ax
