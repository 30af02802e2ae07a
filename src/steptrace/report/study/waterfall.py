"""The section "From the baseline to each variant": its step time taken apart, as a chart and a table."""

from collections.abc import Sequence

from steptrace import format as fmt
from steptrace.documents.comparison import Comparison, Difference, VariantResult, WaterfallPart
from steptrace.limits import NOISE_FLOOR
from steptrace.report.draw.bars import PART_NAMES
from steptrace.report.draw.drawing import WIDTH, Drawing, label_height
from steptrace.report.draw.svg import InlineSvg
from steptrace.report.page.markup import Html, render
from steptrace.report.study.model import variants_shown

#: More variants than this start folded; more than `_MOST` are not taken apart: a page is to stay small.
_MANY, _MOST = 4, 6

CATEGORY_NAMES = PART_NAMES | {"residual": "unexplained, mostly profiler overhead"}

_BAR, _GAP = 14.0, 8.0


def waterfall(study: Comparison) -> Html | None:
    """From the baseline's step time to each variant's, part by part; None where the parts explain no difference."""
    shown = [
        (v, v.step_difference)
        for v in variants_shown(study, _MOST)
        if v.waterfall and v.step_difference is not None and not _is_unexplained(v, v.step_difference)
    ]
    if not shown:
        return None
    divided = sum(bool(v.waterfall and v.step_difference is not None) for v in study.variants)
    kind = "gpu" if any(part.category == "compute" for v, _ in shown for part in v.waterfall) else "host"
    return render(
        "study/waterfall",
        blocks=[] if study.on_simulated_gpu else [_block(variant, total) for variant, total in shown],
        simulated=study.on_simulated_gpu,
        kind=kind,
        many=len(shown) > _MANY,
        left_out=divided - len(shown),
        names=CATEGORY_NAMES,
        floor=NOISE_FLOOR,
        confidence=study.method.confidence,
    )


def _is_unexplained(variant: VariantResult, total: Difference) -> bool:
    """Whether most of the difference is the residual."""
    residual = sum(abs(part.delta_ns) for part in variant.waterfall if part.category == "residual")
    return residual > abs(total.delta_ns) / 2


def _block(variant: VariantResult, total: Difference) -> dict[str, object]:
    parts = [part for part in variant.waterfall if part.baseline_ns or part.variant_ns]  # on either side
    return {
        "variant": variant,
        "rows": [*((part.category, part) for part in parts), (None, total)],
        "total": total,
        "insignificant": is_insignificant,
        "too_wide": is_too_wide,
        "unit": fmt.unit_for_ms(_sizes([*parts, total])),
        "chart": waterfall_figure(parts, total),
    }


def _sizes(parts: Sequence[Difference]) -> list[float]:
    return [
        abs(value)
        for part in parts
        for value in (part.delta_ms, part.baseline_ns / fmt.NS_PER_MS, part.variant_ns / fmt.NS_PER_MS)
    ]


def waterfall_figure(parts: Sequence[WaterfallPart], total: Difference) -> InlineSvg:
    """One row a part: a bar from the step time reached so far to the next, green if shorter, red if longer.

    The lines are the step times of the baseline and of the variant; the axis need not begin at 0.
    """
    before, after = total.baseline_ns / fmt.NS_PER_MS, total.variant_ns / fmt.NS_PER_MS
    parts = _small_ones_together(parts, total)
    labels = [
        (
            _name(part),
            f"below {fmt.setting(NOISE_FLOOR)}"
            if is_insignificant(part, total) and part.category != "small"
            else fmt.signed_ns(part.delta_ns),
        )
        for part in parts
    ]
    head = label_height(labels)
    row = head + _BAR + _GAP
    reached, ends = before, [before, after]
    for part in parts:
        shown = (0.0, part.delta_ms) if is_too_wide(part, total) else (0.0, part.delta_ms, part.low, part.high)
        ends += [reached + end for end in shown if end is not None]
        reached += part.delta_ms
    margin = 0.04 * (max(ends) - min(ends)) or 0.02 * max(ends)
    low, high = min(ends) - margin, max(ends) + margin

    def x(ms: float) -> float:
        return WIDTH * (ms - low) / (high - low)

    drawing = Drawing(row * len(parts) + 48)
    words = "step time, ms: from the baseline (grey line) to the variant (dark line)"
    drawing.x_axis(4, row * len(parts) + 8, (low, high), words)
    reached = before
    for index, part in enumerate(parts):
        top = index * row + 4
        drawing.row_label(top, head, labels[index])
        # Beside the bars alone: through the labels' lines they would run through the letters.
        drawing.line((x(before), top + head), (x(before), top + row), "grey", width=1.4)
        drawing.line((x(after), top + head), (x(after), top + row), "ink", width=1.4)
        ends = sorted((reached, reached + part.delta_ms))
        colour = "grey" if part.category == "residual" else "green" if part.delta_ms < 0 else "vermillion"
        drawing.rect((x(ends[0]), top + head), (x(ends[1]) - x(ends[0]), _BAR), colour)
        if not is_too_wide(part, total) and part.low is not None and part.high is not None:
            y = top + head + _BAR / 2
            drawing.line((x(reached + part.low), y), (x(reached + part.high), y), "muted", width=1.4)
        reached += part.delta_ms
    changes = ", ".join(f"{left} {right}" for left, right in labels)
    return drawing.svg(f"Step time from {fmt.duration_ms(before)} to {fmt.duration_ms(after)}: {changes}.")


def _small_ones_together(parts: Sequence[WaterfallPart], total: Difference) -> list[WaterfallPart]:
    """The parts with those that are too small to see as one, before the residual."""
    small = [part for part in parts if part.category != "residual" and is_insignificant(part, total)]
    if len(small) < 2:
        return list(parts)
    delta = sum(part.delta_ns for part in small)
    one = WaterfallPart(
        category="small",
        delta_ns=delta,
        delta_ms=delta / fmt.NS_PER_MS,
        low=None,
        high=None,
        baseline_ns=0,
        variant_ns=0,
    )
    kept = [part for part in parts if part not in small]
    return sorted([*kept, one], key=lambda part: part.category == "residual")


def is_insignificant(part: Difference, total: Difference) -> bool:
    """Whether a part's difference is too small beside the steps to be worth a number."""
    return abs(part.delta_ns) < NOISE_FLOOR * max(total.baseline_ns, total.variant_ns)


def is_too_wide(part: Difference, total: Difference) -> bool:
    """Whether an interval is wider than both steps together, so that it says nothing."""
    if part.low is None or part.high is None:
        return False
    return (part.high - part.low) * fmt.NS_PER_MS > total.baseline_ns + total.variant_ns


def _name(part: WaterfallPart) -> str:
    if part.category == "residual":  # its explanation stands in the table; here it would run across the lines
        return part.category
    if part.category == "small":
        return f"others, each below {fmt.setting(NOISE_FLOOR)}"
    return CATEGORY_NAMES.get(part.category, part.category)
