"""The sections "Overview", "Inside the loss" and on what a step launches: where a step goes, and what it is made of."""

from collections.abc import Mapping, Sequence

from steptrace import format as fmt
from steptrace.documents.comparison import Comparison
from steptrace.documents.labels import Section
from steptrace.documents.step_figures import STEP_FIGURES
from steptrace.limits import PROFILER_OVERHEAD
from steptrace.report.draw.bars import Part
from steptrace.report.page.markup import Html, render
from steptrace.report.page.overview import FORMAT_NAMES, formats_shown, operator_table, overview_parts
from steptrace.report.study.model import MANY, STEP_SECTIONS, parts_kind


def overview(study: Comparison) -> Html:
    """The overview of a study."""
    kind = parts_kind(study)
    parts = {variant.name: overview_parts(variant.overview) for variant in study.variants}
    labels = list(dict.fromkeys(part.label for of_step in parts.values() for part in of_step))
    precisions = [None if variant.trace is None else variant.trace.precision for variant in study.variants]
    has_gpu = any(precision is not None and precision.shares for precision in precisions)
    slower = max((v.profiled_over_unprofiled or 0 for v in study.variants), default=0)
    return render(
        "study/overview",
        study=study,
        parts_kind=kind,
        has_gpu=has_gpu,
        formats=formats_shown(precisions),
        format_names=FORMAT_NAMES,
        labels=labels,
        unit=fmt.unit_for_ms(part.ms for of_step in parts.values() for part in of_step),
        cells={name: {part.label: part.ms for part in of_step} for name, of_step in parts.items()},
        top_operators=top_operators(study),
        slower=slower if slower > PROFILER_OVERHEAD else None,
    )


def top_operators(study: Comparison) -> list[tuple[str, int, Html | str]]:
    """Those with the most time of the baseline, and of the variant with the least step time where that is another one.

    Of each variant its name, its profiled steps, and the table.
    """
    baseline = next((v for v in study.variants if v.name == study.baseline), None)
    best = min(study.measured, key=lambda variant: study.medians_ms[variant.name], default=None)
    overviews = {v.name: v.overview for v in (baseline, best) if v is not None and v.overview is not None}
    return [(name, of.steps, operator_table(of).html) for name, of in overviews.items() if of.operators]


def launches(study: Comparison) -> Html:
    """The figures per step, bytes of a batch and of the peak; where measured, the synchronised sections."""
    cells = {variant.name: variant.synchronised_sections_ms or {} for variant in study.variants}
    labels = list(dict.fromkeys(label for by_label in cells.values() for label in by_label))
    times = [ms for by_label in cells.values() for ms in by_label.values()]
    times += study.medians_ms.values()
    # Others stand in the table of variants; of those that no variant has there is nothing to show.
    of_steps = [
        figure
        for figure in STEP_FIGURES
        if figure.name.endswith("_per_step") and any(getattr(v, figure.name) is not None for v in study.variants)
    ]
    return render(
        "study/launches",
        study=study,
        has_bytes=any(variant.batch_bytes for variant in study.variants),
        has_peak=any(variant.peak_allocated_bytes is not None for variant in study.variants),
        labels=labels,
        unit=fmt.unit_for_ms(times),
        cells=cells,
        terms=[f"StepFigures.{figure.name}" for figure in of_steps],
        figures=of_steps,
    )


#: Labels of the loop inside its first part.
_INSIDE_DATA = ("copy data",)

#: Labels that PyTorch sets by itself; they are no sections of a loss.
_PROFILERS_LABELS = (
    "Optimizer.",
    "enumerate(DataLoader)",
    "DistributedDataParallel.",
    "ProfilerStep#",
    "PyTorch Profiler",
)


def loss_sections(study: Comparison) -> Html:
    """The labelled sections inside the loss, variant by variant: host time, and GPU time where there is a GPU."""
    sections = {v.name: () if v.trace is None else v.trace.sections for v in study.variants}
    host = _section_table("Host time", {name: sections_of_loss(rows) for name, rows in sections.items()})
    device = _section_table("GPU time", {name: sections_of_loss(rows, gpu=True) for name, rows in sections.items()})
    return render("study/loss_sections", tables=[table for table in (host, device) if table is not None])


def _section_table(title: str, parts: Mapping[str, Sequence[Part]]) -> dict[str, object] | None:
    """One table of sections by variants, turned round where the variants are many: its head, rows of cells, unit.

    A cell is None where a variant has no such section, and "not measured" where it has no sections at all.
    """
    labels = list(dict.fromkeys(part.label for of_variant in parts.values() for part in of_variant))
    if not labels:
        return None
    longest = max(part.ms for of_variant in parts.values() for part in of_variant)
    cells: dict[tuple[str, str], float | str | None] = {}
    for name, of_variant in parts.items():
        times = {part.label: part.ms for part in of_variant}
        cells.update({(name, label): times.get(label) if times else fmt.NOT_MEASURED for label in labels})
    many = len(parts) > MANY
    names = list(parts)
    rows = [(n, [cells[n, label] for label in labels]) for n in names]
    if not many:
        rows = [(label, [cells[n, label] for n in names]) for label in labels]
    head = labels if many else names
    return {"title": title, "head": head, "rows": rows, "longest": longest, "unit": fmt.unit_for_ms([longest])}


def sections_of_loss(sections: Sequence[Section], *, gpu: bool = False) -> tuple[Part, ...]:
    """The sections that are neither the training loop's nor PyTorch's: those that a loss labels; host or GPU time."""
    times = [(row.label, row.device_ns_per_step if gpu else row.host_ns_per_step) for row in sections]
    return tuple(
        Part(label, ns / fmt.NS_PER_MS)
        for label, ns in times
        if ns is not None and label not in (*STEP_SECTIONS, *_INSIDE_DATA) and not label.startswith(_PROFILERS_LABELS)
    )
