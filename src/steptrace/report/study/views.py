"""The subjects for which a study's page shows something other than the rows of the variants' traces."""

from collections.abc import Mapping
from typing import Final

from steptrace import format as fmt
from steptrace.documents.base import by_key
from steptrace.documents.comparison import Comparison
from steptrace.documents.memory import DeviceMemory
from steptrace.documents.overview import part_name
from steptrace.documents.summary import TraceSummary
from steptrace.report.page.markup import Html, definitions, render
from steptrace.report.page.table import Figure, figures_table
from steptrace.report.study.subject_view import StudyView, VariantFigures, views_of

#: Where all variants use less than this share of a host's memory, memory decides nothing between them.
_SMALL_PART: Final = 0.05
#: Names of kernels in a sentence.
_MOST_NAMES: Final = 6
_FORMATS: Final = ("Precision.kernel_ns", "Precision.tensor_core_ns")
#: What the ranks' traces say of all-reduces, beside the run's record of its communication.
_ALL_REDUCES: Final = (
    "count_per_step",
    "bytes_per_step",
    "measured_ns_per_step",
    "exposed_ns_per_step",
    "overlap",
    "wait_ns_per_step",
)


def has_unlinked_work(trace: TraceSummary) -> bool:
    """Whether the kernels of a trace hold work without a known launch."""
    return trace.launches is not None and sum(row.count for row in trace.kernels) > trace.launches.activities


def _memory_decides_nothing(study: Comparison) -> bool:
    """Whether all variants use a small part of a host's memory."""
    traced = [variant.device_memory for variant in study.variants if variant.device_memory is not None]
    return all(map(_is_small, traced)) and all(variant.peak_allocated_bytes is None for variant in study.variants)


def _is_small(memory: DeviceMemory) -> bool:
    if memory.device_type != "cpu" or memory.capacity_bytes is None:
        return False
    return memory.peak_allocated_bytes < _SMALL_PART * memory.capacity_bytes


def _input_decides_nothing(study: Comparison) -> bool:
    """Whether no variant waits for data long enough to say so."""
    waits = [variant.input for variant in study.variants if variant.input is not None]
    return all(wait.verdict in ("none", None) and wait.breakdown_ms is None for wait in waits)


def _formats(study: Comparison) -> Html:
    """The kernels' time by number format, and the part of matrix products on tensor cores, as shares."""
    precisions = {
        variant.name: variant.trace.precision
        for variant in study.variants
        if variant.trace is not None and variant.trace.precision is not None
    }
    formats = dict.fromkeys(
        name for precision in precisions.values() for name, share in precision.shares.items() if share
    )
    if not formats:
        return Html("")
    figures = []
    for name in formats:
        shares = {variant: precision.shares.get(name) for variant, precision in precisions.items()}
        figures.append(Figure(part_name(name).capitalize(), shares, "share"))
    on_cores = {variant: precision.tensor_core_share for variant, precision in precisions.items()}
    figures.append(Figure("Matrix products on tensor cores", on_cores, "share"))
    table = figures_table("Variant", {variant: variant for variant in precisions}, figures)
    tables = [("Kernel time by number format", table)]
    return render("study/tables", lead="", tables=tables, meanings=definitions(_FORMATS))


def _kernels_saved(study: Comparison) -> str:
    """The baseline's kernels that the fastest variant does not run, in a sentence; empty without any."""
    baseline = study.variant(study.baseline)
    best = min(study.measured, key=lambda variant: study.step_times_ms[variant.name], default=None)
    if baseline is None or best is None or baseline.trace is None or best.trace is None:
        return ""
    still_run = by_key(best.trace.kernels)
    saved = [row for identity, row in by_key(baseline.trace.kernels).items() if identity not in still_run]
    if not saved:
        return ""
    ns = sum(row.sum_ns for row in saved) / (baseline.trace.quality.steps or 1)
    take = "" if has_unlinked_work(baseline.trace) else f", which take {fmt.duration_ns(ns)} of a profiled step"
    names = [f"`{row.short_name}`" for row in saved[:_MOST_NAMES]]
    more = [f"{len(saved) - _MOST_NAMES} more"] if len(saved) > _MOST_NAMES else []
    return (
        f"Of the {fmt.plural(len(baseline.trace.kernels), 'kernel')} of `{baseline.name}`, `{best.name}` does not run "
        f"{len(saved)}{take}: {fmt.enumeration([*names, *more])}."
    )


#: By the name of the subject.
VIEWS: Final[Mapping[str, StudyView]] = views_of(
    {
        "overview": StudyView(
            figures=(
                VariantFigures(lambda variant: variant.overview),
                VariantFigures(lambda variant: variant, ("synced_sections_ms",)),
            ),
            below=_formats,
        ),
        "input": StudyView(
            figures=(
                VariantFigures(lambda variant: variant.input),
                VariantFigures(lambda variant: None if variant.input is None else variant.input.breakdown_ms),
            ),
            decides_nothing=_input_decides_nothing,
        ),
        "collectives": StudyView(
            figures=(
                VariantFigures(lambda variant: variant.communication),
                VariantFigures(
                    lambda variant: None if variant.ranks is None else variant.ranks.all_reduce, _ALL_REDUCES
                ),
                VariantFigures(lambda variant: None if variant.ranks is None else variant.ranks.straggler),
            ),
        ),
        "memory": StudyView(
            figures=(
                VariantFigures(lambda variant: variant.device_memory),
                VariantFigures(lambda variant: variant, ("peak_allocated_bytes", "batch_bytes")),
            ),
            decides_nothing=_memory_decides_nothing,
        ),
        "kernels": StudyView(lead=_kernels_saved),
    }
)
