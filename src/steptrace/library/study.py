"""The results of a study as an object with DataFrames and pictures."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pandas as pd

from steptrace import format as fmt
from steptrace.documents.base import Document, columns_of
from steptrace.documents.comparison import Comparison
from steptrace.documents.estimate import Band
from steptrace.documents.finding import Finding
from steptrace.documents.study_rows import (
    StudyStep,
    VariantEstimate,
    VariantGpuUse,
    VariantSite,
    VariantSyncs,
    VariantTimes,
)
from steptrace.documents.syncs import SiteRow
from steptrace.documents.table import names_of
from steptrace.errors import RecordError
from steptrace.library import plots
from steptrace.words.estimate import reason_words

if TYPE_CHECKING:  # matplotlib is in the extra `lab`
    from matplotlib.axes import Axes

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


class LoadedStudy:
    """The results of one study. Made by `load_study`. DataFrames have a row per variant, in the study's order.

    Attributes:
        document: the content of comparison.json.
        folder: where the runs lie.
    """

    document: Comparison
    folder: Path

    def __init__(self, document: Comparison, folder: Path) -> None:
        self.document = document
        self.folder = folder

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings of the study."""
        return self.document.findings

    @cached_property
    def step_times(self) -> pd.DataFrame:
        """Unprofiled step times in ms with their 95 % interval, the ratio to the baseline, and the verdict on it."""
        rows = []
        for variant in self.document.variants:
            times = variant.step_ms
            ratio = variant.ratio
            judged = variant.judged_ratio
            per_sample = variant.ratio_per_sample
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
                    "verdict": judged and judged.verdict,
                    "equivalence": variant.equivalence.status,
                    "samples_per_s": variant.samples_per_s,
                    "ratio_per_sample": per_sample and per_sample.value,
                }
            )
        return _by_variant(rows, VariantTimes)

    @cached_property
    def steps(self) -> pd.DataFrame:
        """A row per step of every run, in the order they ran.

        Raises:
            RecordError: a run's steps.parquet is missing or damaged; only comparison.json may have been copied.
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
        rows = []
        for variant in self.document.variants:
            is_measured = variant.syncs.measured_per_step is not None
            sites: Sequence[SiteRow] = variant.sync_sites if is_measured else variant.predicted_sites
            rows += [
                {
                    "variant": variant.name,
                    "basis": "measured" if is_measured else "predicted",
                    "file": site.file,
                    "line": site.line,
                    "operator": site.op,
                    "kind": site.kind,
                    "count_per_step": site.count_per_step,
                    "code": site.code,
                }
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
        """Estimates for GPUs that are not there, a row per variant and GPU: step time, what it saves, and memory.

        An estimate is never a measurement: the band is where 90 % of the possible GPUs' step times lie.
        """
        rows = [
            {
                "variant": variant.name,
                "gpu": estimate.gpu,
                "low_ms": estimate.step_ms and estimate.step_ms[0],
                "high_ms": estimate.step_ms and estimate.step_ms[1],
                **_ends("saved", None if estimate.difference is None else estimate.difference.saved_ms),
                **_ends("blocked", estimate.blocked_ms),
                "limited_by": estimate.limited_by,
                "launches": estimate.launches,
                "peak_memory_bytes": estimate.peak_memory_bytes,
                "fits": estimate.fits,
                "reason": reason_words(estimate) if estimate.step_ms is None else None,
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
        medians = {str(name): self._medians_of_runs(str(name)) for name in times.index}
        return plots.draw_step_times(times, medians, self.document.title, ax)

    def plot_syncs(self, ax: "Axes | None" = None) -> "Axes":
        """Draw the syncs per step of each variant: measured where there is a measurement, else predicted.

        Args:
            ax: where to draw; default: new axes.

        Returns:
            The axes.
        """
        return plots.draw_syncs(self.syncs, self.document.title, ax)

    def plot_gpu_use(self, ax: "Axes | None" = None) -> "Axes":
        """Draw the GPU utilisation of each variant in its three senses, in percent.

        Args:
            ax: where to draw; default: new axes.

        Returns:
            The axes. Without a GPU they say that nothing was measured.
        """
        return plots.draw_gpu_use(self.gpu_use, self.document.title, ax)

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
            times = variant.step_ms
            syncs = variant.syncs
            is_predicted = syncs.measured_per_step is None
            count = syncs.predicted_per_step if is_predicted else syncs.measured_per_step
            verdict = variant.verdict or ("baseline" if variant.name == document.baseline else "-")
            rows.append(
                (
                    variant.name,
                    "not measured" if times is None else fmt.step_time(times.value, times.low, times.high)[0],
                    "-" if count is None else fmt.count(count),
                    "" if count is None else "predicted" if is_predicted else "measured",
                    verdict if variant.status == "ok" else variant.status,
                )
            )
        return "\n".join([*filter(None, head), *fmt.columns(("variant", "step", "syncs", "", "verdict"), rows)])


def _ends(name: str, band: Band | None) -> dict[str, float | None]:
    """Both ends of a band in ms, in a column each."""
    low, high = (None, None) if band is None else band
    return {f"{name}_low_ms": low, f"{name}_high_ms": high}


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
