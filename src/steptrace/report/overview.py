"""The first section of a page: where a step goes, where its operators run, in which number formats, and what to do.

The same on a study's page, variant by variant, and on a trace's page.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from steptrace.documents.comparison import Comparison, PrecisionOfVariant, VariantResult
from steptrace.documents.finding import Finding
from steptrace.documents.rows import TopOperator
from steptrace.report import definitions as defs
from steptrace.report import format as fmt
from steptrace.report.build import traced_parts
from steptrace.report.draw import parts as draw
from steptrace.report.draw.svg import InlineSvg
from steptrace.report.markup import Html, render
from steptrace.report.model import Part, measured, parts_kind
from steptrace.report.overview_model import FORMAT_NAMES, device_share

#: How many recommendations stand at the top; the section `Findings` has all.
MOST_FINDINGS: Final = 3
#: A number format with less of the kernel time gets no column.
_SMALLEST_SHARE: Final = 0.0005
#: Before the names of an overview's parts where charts and tables know them.
_PREFIX: Final = "step_"


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
        "overview",
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


def recommended(findings: Sequence[Finding]) -> list[Finding]:
    """The first findings, which matter most, one of each rule; what can save nothing only where nothing else is."""
    by_rule: dict[str, Finding] = {}
    for finding in [item for item in findings if item.cost_ns_per_step != 0] or findings:
        by_rule.setdefault(finding.rule, finding)
    return list(by_rule.values())[:MOST_FINDINGS]


def formats_shown(found: Sequence[PrecisionOfVariant | None]) -> list[str]:
    """The number formats worth a column: 16, 32 bits and unknown always, the others where any kernel has them."""
    shares = [pair for item in found if item is not None for pair in item.kernel_share.items()]
    used = {name for name, share in shares if share >= _SMALLEST_SHARE}
    return [name for name in FORMAT_NAMES if name in ("bits16", "bits32", "unknown") or name in used]


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


def parts_chart(parts: Sequence[tuple[str, float]], title: str) -> InlineSvg | None:
    """One bar of a trace's parts; None without any."""
    return draw.stacked_bars([(title, _labelled(parts))], "ms") if parts else None


def _median(variant: VariantResult) -> float:
    return variant.step_ms.median if variant.step_ms is not None else float("inf")


def _parts(variant: VariantResult, kind: str | None) -> tuple[Part, ...]:
    """The parts of a variant's profiled step; without an overview those of its trace figures."""
    if variant.overview is not None and variant.overview.parts_ms:
        return _labelled(tuple(variant.overview.parts_ms.items()))
    return traced_parts(variant, kind)


def _labelled(parts: Sequence[tuple[str, float]]) -> tuple[Part, ...]:
    """Parts under labels of their own: some of these names mean a cause of idle time elsewhere on the page."""
    known = draw.PART_COLOURS
    return tuple(Part(label if (label := _PREFIX + name) in known else name, ms) for name, ms in parts)
