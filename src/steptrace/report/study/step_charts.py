"""The charts of a comparison: step times run by run, ratios with their intervals, steps in their order.

Every function returns an inline SVG with an alternative text. Names stand above
their row, never beside it, so that long names and narrow screens do no harm.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from steptrace import format as fmt
from steptrace.documents.comparison import Comparison, RatioToBaseline, VariantResult
from steptrace.report.draw.cells import LOG_FROM, Scale
from steptrace.report.draw.drawing import ONE_LINE, WIDTH, Drawing, label_height, ticks
from steptrace.report.draw.svg import InlineSvg
from steptrace.report.study.model import RunSteps, verdict_words

#: Colour and shape of a verdict's mark: they differ in shape as well.
VERDICT_MARKS: Final[dict[str | None, tuple[str, str]]] = {
    "faster": ("blue", "up"),
    "slower": ("vermillion", "down"),
    "same": ("green", "square"),
}
_NO_CLAIM: Final = ("grey", "circle")
#: From this many steps on, a run's density is worth drawing, in so many bins.
_DENSITY_FROM, _BINS = 60, 60
#: A line through more steps than this is drawn through the least and the greatest of each of so many groups; of many
#: lines each has fewer, so that all together have no more than `_POINTS_IN_ALL`.
_MOST_POINTS: Final = 200
_FEWEST_POINTS: Final = 30
_POINTS_IN_ALL: Final = 1_000
_RUN, _GAP, _FOOT = 13.0, 11.0, 38.0
_RATIO_TICKS: Final = (
    *(0.01, 0.02, 0.05, 0.1, 0.2, 0.33, 0.5, 0.67, 0.8, 0.9, 0.95, 0.98),
    *(1, 1.02, 1.05, 1.1, 1.25, 1.5, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1000),
)


def step_times(study: Comparison, steps: Sequence[RunSteps]) -> InlineSvg:
    """Every step of every run: one row a run, the median marked, warm-up hollow and left out."""
    by_variant = {v.name: [s for s in steps if s.variant == v.name and s.timed.size] for v in study.variants}
    shown = [v for v in study.variants if by_variant[v.name]]
    scale = _time_scale([run for v in shown for run in by_variant[v.name]])
    labels = {v.name: (v.name, _left_out_note(by_variant[v.name], scale.high)) for v in shown}
    label = label_height(labels.values())
    floor = sum(label + _RUN * len(by_variant[v.name]) + _GAP for v in shown)
    drawing = Drawing(floor + _FOOT)
    unit, size = fmt.unit_for_ms([scale.high])
    _axis(drawing, scale, (0, floor), [(t, f"{t / size:g}") for t in scale.ticks()], f"step time, {unit}")
    y = 0.0
    for variant in shown:
        runs = by_variant[variant.name]
        with drawing.of_variant(variant.name):
            drawing.row_label(y, label, labels[variant.name])
            _draw_runs(drawing, (variant, runs), y + label, scale)
        y += label + _RUN * len(runs) + _GAP
    alt = "Step times by run. " + " ".join(
        f"{v.name}: median {fmt.duration_ms(v.step_ms.median)}." for v in shown if v.step_ms is not None
    )
    return drawing.svg(alt)


def _time_scale(runs: Sequence[RunSteps]) -> Scale:
    """A scale that shows the bulk of all runs; the rest is marked at the edge."""
    timed = np.concatenate([run.timed for run in runs])
    bulk = max(float(np.percentile(run.timed, 97)) for run in runs)
    right = float(timed.max()) if timed.max() <= 1.6 * bulk else 1.15 * bulk
    left = float(timed.min())
    medians = [float(np.median(run.timed)) for run in runs]
    if max(medians) > LOG_FROM * min(medians):
        return Scale(left / 1.15, right * 1.15, log=True)
    margin = 0.04 * (right - left) or 0.02 * right
    return Scale(max(left - margin, 0.0), right + margin, log=False)


def _x(scale: Scale, value: float) -> float:
    return WIDTH * float(scale.place(value)) / 100


def _axis(
    drawing: Drawing, scale: Scale, heights: tuple[float, float], labels: Iterable[tuple[float, str]], words: str
) -> None:
    """Lines at values between two heights, their labels below, and below these what they are."""
    top, floor = heights
    for value, label in labels:
        x = _x(scale, value)
        drawing.line((x, top), (x, floor))
        anchor = "start" if x < 12 else "end" if x > WIDTH - 12 else "middle"
        drawing.text((x, floor + 11), label, anchor=anchor)
    drawing.text((WIDTH / 2, floor + 28), words, anchor="middle")


def _left_out_note(runs: Sequence[RunSteps], right: float) -> str:
    count = sum(run.warmup.size for run in runs)
    if not count:
        return "no warm-up left out"
    longest = max(float(run.warmup.max()) for run in runs if run.warmup.size)
    beyond = f", up to {fmt.duration_ms(longest)}" if longest > right else ""
    return f"{count} warm-up left out{beyond}"


def _draw_runs(drawing: Drawing, of: tuple[VariantResult, Sequence[RunSteps]], top: float, scale: Scale) -> None:
    variant, runs = of
    times = variant.step_ms
    if times is not None and times.low is not None and times.high is not None:
        left, right = _x(scale, times.low), _x(scale, times.high)
        drawing.rect((left, top - 1), (right - left, _RUN * len(runs) + 1), "band")
    for index, run in enumerate(runs):
        _draw_run(drawing, run, top + _RUN * index, scale)


def _draw_run(drawing: Drawing, run: RunSteps, top: float, scale: Scale) -> None:
    foot = top + _RUN - 2
    inside = run.timed[run.timed <= scale.high]
    dense = run.timed.size >= _DENSITY_FROM
    if dense:
        counts, edges = np.histogram(inside, bins=_BINS)
        tall = foot - counts / counts.max() * (_RUN - 3)
        places = [(_x(scale, float(edge)), float(y)) for edge, y in zip(edges, [*tall, foot], strict=True)]
        drawing.area(places, foot, "blue", opacity=0.45)
    drawing.strokes([_x(scale, float(ms)) for ms in inside], (foot, foot - (3.5 if dense else 9.0)), "blue")
    for ms in run.warmup[(run.warmup <= scale.high) & (run.warmup >= scale.low)]:
        drawing.mark((_x(scale, float(ms)), foot - 4.5), "circle", "grey", size=2.5, hollow=True)
    median = _x(scale, float(np.median(run.timed)))
    drawing.line((median, foot + 0.5), (median, top), "ink", width=2.2)
    beyond = run.timed[run.timed > scale.high]
    if beyond.size:
        text = f"{beyond.size} to {fmt.duration_ms(float(beyond.max()))} ▸"
        drawing.text((WIDTH, top + 5), text, anchor="end")


def ratios(study: Comparison) -> InlineSvg:
    """Each variant's ratio with its interval on a logarithmic axis, over the band of the noise floor."""
    rows = [(v, v.ratio) for v in study.variants if v.ratio is not None and not v.is_baseline]
    labels = [_ratio_label(variant, ratio) for variant, ratio in rows]
    label = label_height(labels)
    row = label + 22.0
    floor = row * len(rows) + 4
    drawing = Drawing(floor + _FOOT)
    scale = Scale(*_ratio_limits([ratio for _, ratio in rows]), log=True)
    noise = study.method.noise_floor
    if noise:
        left, right = _x(scale, 1 / (1 + noise)), _x(scale, 1 + noise)
        drawing.rect((left, 0), (right - left, floor), "band")
    named = [(tick, f"{tick:g}×") for tick in _ratio_ticks(scale.low, scale.high)]
    _axis(drawing, scale, (0, floor), named, "◂ slower  ·  ratio of medians  ·  faster ▸")
    drawing.line((_x(scale, 1), 0), (_x(scale, 1), floor), "grey", width=1.2)
    for index, (variant, ratio) in enumerate(rows):
        with drawing.of_variant(variant.name):
            drawing.row_label(index * row, label, labels[index])
            _draw_ratio(drawing, ratio, index * row + label + 8, scale)
    alt = "Ratio of medians, above 1 is faster. " + " ".join(_ratio_words(v, ratio) for v, ratio in rows)
    return drawing.svg(alt)


def _ratio_words(variant: VariantResult, ratio: RatioToBaseline) -> str:
    interval = "" if ratio.low is None else f" ({fmt.ratio_interval(ratio.low, ratio.high)})"
    return f"{variant.name}: {fmt.ratio(ratio.value, ratio.low, ratio.high)}{interval}, {verdict_words(variant)}."


def _ratio_label(variant: VariantResult, ratio: RatioToBaseline) -> tuple[str, str]:
    interval = "" if ratio.low is None else f" ({fmt.ratio_interval(ratio.low, ratio.high)})"
    return variant.name, f"{fmt.ratio(ratio.value, ratio.low, ratio.high)}{interval} · {verdict_words(variant)}"


def _draw_ratio(drawing: Drawing, ratio: RatioToBaseline, y: float, scale: Scale) -> None:
    colour, shape = VERDICT_MARKS.get(ratio.verdict, _NO_CLAIM)
    if ratio.low is not None and ratio.high is not None:
        ends = _x(scale, ratio.low), _x(scale, ratio.high)
        drawing.line((ends[0], y), (ends[1], y), colour, width=2.4)
        for end in ends:
            drawing.line((end, y - 5), (end, y + 5), colour, width=1.6)
    drawing.mark((_x(scale, ratio.value), y), shape, colour, size=5, hollow=shape == "circle")


def _ratio_limits(rows: Sequence[RatioToBaseline]) -> tuple[float, float]:
    """Limits that show every ratio, and every interval that is not too wide to say anything."""
    values = [1.0] + [ratio.value for ratio in rows if ratio.value > 0]
    for ratio in rows:
        if ratio.low is not None and ratio.high is not None and not fmt.is_too_wide(ratio.low, ratio.high):
            values += [ratio.low, ratio.high]
    low, high = math.log(min(values)), math.log(max(values))
    margin = max(0.06 * (high - low), 0.015)
    return math.exp(low - margin), math.exp(high + margin)


def _ratio_ticks(low: float, high: float) -> list[float]:
    """Familiar ratios within the limits, none closer to its neighbour than its text is wide."""
    span = math.log(high / low)
    shown: list[float] = [1.0]
    for tick in sorted((t for t in _RATIO_TICKS if low <= t <= high), key=lambda t: abs(math.log(t))):
        if all(abs(math.log(tick / other)) > 0.11 * span for other in shown):
            shown.append(float(tick))
    return sorted(shown)


def steps_in_order(study: Comparison, steps: Sequence[RunSteps]) -> InlineSvg:
    """Step times in the order the steps ran, one line a run: shows warm-up, drift and outliers."""
    by_variant = {v.name: [s for s in steps if s.variant == v.name and s.timed.size] for v in study.variants}
    shown = {name: runs for name, runs in by_variant.items() if runs}
    block, plot = 118.0, 78.0
    drawing = Drawing(block * len(shown) + 12)
    most = min(max(_POINTS_IN_ALL // sum(map(len, shown.values())), _FEWEST_POINTS), _MOST_POINTS)
    for index, (name, runs) in enumerate(shown.items()):
        with drawing.of_variant(name):
            drawing.row_label(block * index, ONE_LINE, (name, ""))
            _draw_order(drawing, runs, (block * index + ONE_LINE + 4, plot), most)
    drawing.text((WIDTH / 2, block * len(shown) + 2), "step (warm-up shaded)", anchor="middle")
    return drawing.svg("Step times in the order the steps ran, one line a run, per variant.")


def _draw_order(drawing: Drawing, runs: Sequence[RunSteps], place: tuple[float, float], most: int) -> None:
    top, height = place
    colours = ("blue", "orange", "green", "purple", "vermillion", "sky")
    floor, left = top + height, 44.0
    last = max(run.ms.size for run in runs)
    highest = 1.05 * max(float(run.ms.max()) for run in runs)

    def at(step: float, ms: float) -> tuple[float, float]:
        return left + (WIDTH - left) * (step + 0.5) / last, floor - height * ms / highest

    left_out = max(run.warmup.size for run in runs)
    if left_out:
        drawing.rect((left, top), (at(left_out - 0.5, 0)[0] - left, height), "band")
    for ms in ticks(0, highest, 3):
        y = at(0, ms)[1]
        drawing.line((left, y), (WIDTH, y))
        drawing.text((left - 5, y), fmt.duration_ms(ms, 2) if ms else "0", anchor="end")
    for step in ticks(0, last - 1, 6):
        if step == int(step):
            drawing.text((at(step, 0)[0], floor + 9), f"{step:g}", anchor="middle")
    for index, run in enumerate(runs):
        drawing.curve([at(*point) for point in _outline(run.ms, most)], colours[index % len(colours)])


def _outline(ms: npt.NDArray[np.float64], most: int) -> list[tuple[float, float]]:
    """Steps with their times; of very many the least and the greatest of each group, in their order."""
    if ms.size <= most:
        return [(float(step), float(time)) for step, time in enumerate(ms)]
    groups = np.array_split(np.arange(ms.size), most // 2)
    kept = [sorted((int(group[ms[group].argmin()]), int(group[ms[group].argmax()]))) for group in groups]
    return [(float(step), float(ms[step])) for step in dict.fromkeys(step for pair in kept for step in pair)]
