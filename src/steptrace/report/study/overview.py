"""The section "Overview": where a step goes, where its operators run, in which number formats, and what to do."""

from dataclasses import dataclass

from steptrace import format as fmt
from steptrace.documents.comparison import Comparison, VariantResult
from steptrace.documents.rows import TopOperator
from steptrace.report.draw import bars as draw
from steptrace.report.draw.bars import Part
from steptrace.report.draw.svg import InlineSvg
from steptrace.report.page import definitions as defs
from steptrace.report.page.findings import MOST_FINDINGS, recommended
from steptrace.report.page.markup import Html, render
from steptrace.report.page.overview import FORMAT_NAMES, device_share, formats_shown, labelled
from steptrace.report.study.load import traced_parts
from steptrace.report.study.model import measured, parts_kind


@dataclass(frozen=True)
class TopOperators:
    """The operators of one variant that take the most time, on the GPU or (`on_device` false) on the host."""

    variant: str
    on_device: bool
    rows: tuple[TopOperator, ...]


def overview(study: Comparison) -> Html:
    """The overview of a study."""
    kind = parts_kind(study)
    parts = {variant.name: _parts(variant, kind) for variant in study.variants}
    labels = list(dict.fromkeys(part.label for found in parts.values() for part in found))
    has_gpu = any(variant.precision is not None for variant in study.variants)
    return render(
        "study/overview",
        study=study,
        parts_kind=kind,
        device_share=device_share,
        has_gpu=has_gpu,
        formats=formats_shown([variant.precision for variant in study.variants]),
        format_names=FORMAT_NAMES,
        chart=step_parts(study),
        labels=labels,
        names=draw.PART_NAMES,
        unit=fmt.unit_for_ms(part.ms for found in parts.values() for part in found),
        cells={name: {part.label: part.ms for part in found} for name, found in parts.items()},
        top_operators=top_operators(study),
        recommendations_found=recommended(study.findings),
        more=max(len(study.findings) - MOST_FINDINGS, 0),
        terms=defs.definitions(terms(has_gpu=has_gpu, kind=kind)),
    )


def step_parts(study: Comparison) -> InlineSvg | None:
    """Where a profiled step's time goes: one stacked bar a variant; None if none was profiled."""
    kind = parts_kind(study)
    rows = [(variant.name, _parts(variant, kind)) for variant in study.variants]
    rows = [(name, parts) for name, parts in rows if parts]
    return draw.stacked_bars(rows, "ms per profiled step") if rows else None


def terms(*, has_gpu: bool, kind: str | None) -> tuple[str, ...]:
    """The keys of the definitions that an overview needs."""
    parts = ("step_window_gpu", "device_compute") if has_gpu or kind == "gpu" else ("parts_host",)
    return (*parts, "loader_wait", "placement", *(("number_format", "tensor_core") if has_gpu else ()))


def top_operators(study: Comparison) -> list[TopOperators]:
    """Those of the baseline, and of the variant with the least step time where that is another one."""
    baseline = next((v for v in study.variants if v.name == study.baseline), None)
    best = min(measured(study), key=_median, default=None)
    found = {v.name: v.overview.operators for v in (baseline, best) if v is not None and v.overview is not None}
    return [TopOperators(name, any(row.device_self_ns for row in rows), rows) for name, rows in found.items() if rows]


def _median(variant: VariantResult) -> float:
    return variant.step_ms.median if variant.step_ms is not None else float("inf")


def _parts(variant: VariantResult, kind: str | None) -> tuple[Part, ...]:
    """The parts of a variant's profiled step; without an overview those of its trace figures."""
    if variant.overview is not None and variant.overview.parts_ms:
        return labelled(tuple(variant.overview.parts_ms.items()))
    return traced_parts(variant, kind)
