"""The section "Overview": where a step goes, where its operators run, in which number formats."""

from dataclasses import dataclass

from steptrace import format as fmt
from steptrace.documents.comparison import Comparison, VariantResult
from steptrace.documents.rows import TopOperator
from steptrace.report.draw import bars as draw
from steptrace.report.page.markup import Html, render
from steptrace.report.page.overview import FORMAT_NAMES, device_share, formats_shown
from steptrace.report.study.model import measured, parts_kind, step_parts


@dataclass(frozen=True)
class TopOperators:
    """The operators of one variant that take the most time, on the GPU or (`on_device` false) on the host."""

    variant: str
    on_device: bool
    rows: tuple[TopOperator, ...]


def overview(study: Comparison) -> Html:
    """The overview of a study."""
    kind = parts_kind(study)
    parts = {variant.name: step_parts(study, variant) for variant in study.variants}
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
        labels=labels,
        names=draw.PART_NAMES,
        unit=fmt.unit_for_ms(part.ms for found in parts.values() for part in found),
        cells={name: {part.label: part.ms for part in found} for name, found in parts.items()},
        top_operators=top_operators(study),
        terms=terms(has_gpu=has_gpu, kind=kind),
    )


def terms(*, has_gpu: bool, kind: str | None) -> tuple[str, ...]:
    """The keys of the definitions that an overview needs."""
    parts = ("step_window_gpu", "device_compute") if has_gpu or kind == "gpu" else ("parts_host",)
    return (*parts, "loader_wait", "placement", "own_host_time", *(("number_format", "tensor_core") if has_gpu else ()))


def top_operators(study: Comparison) -> list[TopOperators]:
    """Those of the baseline, and of the variant with the least step time where that is another one."""
    baseline = next((v for v in study.variants if v.name == study.baseline), None)
    best = min(measured(study), key=_median, default=None)
    found = {v.name: v.overview.operators for v in (baseline, best) if v is not None and v.overview is not None}
    return [TopOperators(name, any(row.device_self_ns for row in rows), rows) for name, rows in found.items() if rows]


def _median(variant: VariantResult) -> float:
    return variant.step_ms.median if variant.step_ms is not None else float("inf")
