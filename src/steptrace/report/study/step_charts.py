"""The charts of a comparison: step times run by run, ratios with their intervals, steps in their order.

Every function returns an inline SVG with an alternative text. Names stand above
their row, never beside it, so that long names and narrow screens do no harm.
"""

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from steptrace import format as fmt
from steptrace.documents.comparison import Comparison, RatioToBaseline, VariantResult
from steptrace.report.draw.drawing import ONE_LINE, WIDTH, label_height, shorten
from steptrace.report.draw.plot import (
    BAND,
    COLOURS,
    GREY,
    INK,
    MUTED,
    RULE,
    canvas,
    inline,
    row_label,
    rows_axes,
    style,
)
from steptrace.report.draw.svg import InlineSvg
from steptrace.report.study.model import RunSteps, is_baseline, verdict_words

#: Colour and marker of a verdict: told apart by shape as well.
VERDICT_MARKS: dict[str | None, tuple[str, str]] = {
    "faster": (COLOURS["blue"], "^"),
    "slower": (COLOURS["vermillion"], "v"),
    "same": (COLOURS["green"], "s"),
    "undecided": (GREY, "o"),
    None: (GREY, "o"),
}
#: Medians that lie further apart than this need a logarithmic axis.
_LOG_FROM = 6.0
#: From this many steps on, a run's density is worth drawing.
_DENSITY_FROM = 60
_RUN, _GAP = 13.0, 11.0
_RATIO_TICKS: tuple[float, ...] = (
    *(0.01, 0.02, 0.05, 0.1, 0.2, 0.33, 0.5, 0.67, 0.8, 0.9, 0.95, 0.98),
    *(1, 1.02, 1.05, 1.1, 1.25, 1.5, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1000),
)


def step_times(study: Comparison, steps: Sequence[RunSteps]) -> InlineSvg:
    """Every step of every run: one row a run, the median marked, warm-up hollow and left out."""
    by_variant = {v.name: [s for s in steps if s.variant == v.name and s.timed.size] for v in study.variants}
    shown = [v for v in study.variants if by_variant[v.name]]
    log, left, right = _time_limits([run for v in shown for run in by_variant[v.name]])
    labels = {v.name: (v.name, _left_out_note(by_variant[v.name], right)) for v in shown}
    label = label_height(labels.values())
    height = sum(label + _RUN * len(by_variant[v.name]) + _GAP for v in shown)
    with style():
        figure = canvas(height + 46)
        axes = rows_axes(figure, height)
        _time_axis(axes, left, right, "log" if log else "linear")
        axes.grid(axis="x", color=RULE, linewidth=0.8)
        y = 0.0
        for variant in shown:
            runs = by_variant[variant.name]
            row_label(axes, y, label, labels[variant.name])
            y += label
            if variant.step_ms is not None and variant.step_ms.low is not None and variant.step_ms.high is not None:
                low, high = variant.step_ms.low, variant.step_ms.high
                axes.add_patch(Rectangle((low, y - 1), high - low, _RUN * len(runs) + 1, color=BAND, zorder=0.5))
            for run in runs:
                _draw_run(axes, run, y, (left, right))
                y += _RUN
            y += _GAP
        alt = "Step times by run. " + " ".join(
            f"{v.name}: median {fmt.duration_ms(v.step_ms.median)}." for v in shown if v.step_ms is not None
        )
        return inline(figure, alt)


def _time_limits(runs: Sequence[RunSteps]) -> tuple[bool, float, float]:
    """Whether the axis is logarithmic, and limits that show the bulk of all runs; the rest is marked at the edge."""
    timed = np.concatenate([run.timed for run in runs])
    bulk = max(float(np.percentile(run.timed, 97)) for run in runs)
    right = float(timed.max()) if timed.max() <= 1.6 * bulk else 1.15 * bulk
    left = float(timed.min())
    medians = [float(np.median(run.timed)) for run in runs]
    if max(medians) > _LOG_FROM * min(medians):
        return True, left / 1.15, right * 1.15
    margin = 0.04 * (right - left) or 0.02 * right
    return False, left - margin, right + margin


def _time_axis(axes: Axes, left: float, right: float, scale: Literal["log", "linear"]) -> None:
    axes.set_xscale(scale)
    axes.minorticks_off()
    axes.set_xlim(left, right)
    unit, size = next(((u, s) for u, s in (("s", 1e3), ("ms", 1.0), ("µs", 1e-3)) if right >= s), ("µs", 1e-3))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value / size:g}")
    axes.set_xlabel(f"step time, {unit}")


def _left_out_note(runs: Sequence[RunSteps], right: float) -> str:
    count = sum(run.warmup.size for run in runs)
    if not count:
        return "no warm-up left out"
    longest = max(float(run.warmup.max()) for run in runs if run.warmup.size)
    beyond = f", up to {fmt.duration_ms(longest)}" if longest > right else ""
    return f"{count} warm-up left out{beyond}"


def _draw_run(axes: Axes, run: RunSteps, top: float, limits: tuple[float, float]) -> None:
    left, right = limits
    foot = top + _RUN - 2
    colour = COLOURS["blue"]
    inside = run.timed[run.timed <= right]
    tick = 9.0
    if run.timed.size >= _DENSITY_FROM:
        tick = 3.5
        counts, edges = np.histogram(inside, bins=60)
        tall = foot - counts / counts.max() * (_RUN - 3)
        axes.fill_between(np.repeat(edges, 2)[1:-1], foot, np.repeat(tall, 2), color=colour, alpha=0.45, linewidth=0)
    axes.plot(*_ticks(inside, foot, foot - tick), color=colour, alpha=0.75, linewidth=0.9)
    warm = run.warmup[(run.warmup <= right) & (run.warmup >= left)]
    axes.plot(
        warm,
        np.full(warm.size, foot - 4.5),
        "o",
        markerfacecolor="none",
        markeredgecolor=GREY,
        markersize=5,
        clip_on=False,
    )
    median = float(np.median(run.timed))
    axes.plot([median, median], [foot + 0.5, top], color=INK, linewidth=2.2, solid_capstyle="butt")
    beyond = run.timed[run.timed > right]
    if beyond.size:
        text = f"{beyond.size} to {fmt.duration_ms(float(beyond.max()))} ▸"
        axes.text(right, top + 5, text, ha="right", va="center", fontsize=9.5, color=MUTED)


def _ticks(x: npt.NDArray[np.float64], low: float, high: float) -> tuple[npt.NDArray[np.float64], ...]:
    """One path of vertical ticks: a single path keeps the page small."""
    nan = np.full(x.size, np.nan)
    ys = np.stack([np.full(x.size, low), np.full(x.size, high), nan], axis=1)
    return np.stack([x, x, nan], axis=1).ravel(), ys.ravel()


def ratios(study: Comparison) -> InlineSvg:
    """Each variant's ratio with its interval on a logarithmic axis, over the band of the noise floor."""
    rows = [(v, v.ratio) for v in study.variants if v.ratio is not None and not is_baseline(v)]
    labels = [_ratio_label(variant, ratio) for variant, ratio in rows]
    label = label_height(labels)
    row = label + 22.0
    with style():
        figure = canvas(row * len(rows) + 50)
        axes = rows_axes(figure, row * len(rows) + 4)
        axes.set_xscale("log")
        low, high = _ratio_limits([ratio for _, ratio in rows])
        axes.set_xlim(low, high)
        ticks = _ratio_ticks(low, high)
        axes.set_xticks(ticks, [f"{tick:g}×" for tick in ticks])
        axes.minorticks_off()
        floor = study.method.noise_floor
        if floor:
            axes.axvspan(1 / (1 + floor), 1 + floor, color=BAND, zorder=0.4, linewidth=0)
        axes.axvline(1, color=GREY, linewidth=1.2, zorder=0.6)
        for index, (_, ratio) in enumerate(rows):
            row_label(axes, index * row, label, labels[index])
            _draw_ratio(axes, ratio, index * row + label + 8)
        axes.set_xlabel("◂ slower  ·  ratio of medians  ·  faster ▸")
        alt = "Ratio of medians, above 1 is faster. " + " ".join(_ratio_words(v, ratio) for v, ratio in rows)
        return inline(figure, alt)


def _ratio_words(variant: VariantResult, ratio: RatioToBaseline) -> str:
    interval = "" if ratio.low is None else f" ({fmt.ratio_interval(ratio.low, ratio.high)})"
    return f"{variant.name}: {fmt.ratio(ratio.value, ratio.low, ratio.high)}{interval}, {verdict_words(variant)}."


def _ratio_label(variant: VariantResult, ratio: RatioToBaseline) -> tuple[str, str]:
    interval = "" if ratio.low is None else f" ({fmt.ratio_interval(ratio.low, ratio.high)})"
    return variant.name, f"{fmt.ratio(ratio.value, ratio.low, ratio.high)}{interval} · {verdict_words(variant)}"


def _draw_ratio(axes: Axes, ratio: RatioToBaseline, y: float) -> None:
    colour, marker = VERDICT_MARKS.get(ratio.verdict, VERDICT_MARKS[None])
    if ratio.low is not None and ratio.high is not None:
        axes.plot([ratio.low, ratio.high], [y, y], color=colour, linewidth=2.4, solid_capstyle="butt")
        for end in (ratio.low, ratio.high):
            axes.plot([end, end], [y - 5, y + 5], color=colour, linewidth=1.6)
    face = "none" if ratio.verdict in ("undecided", None) else colour
    axes.plot([ratio.value], [y], marker, color=colour, markerfacecolor=face, markersize=9, markeredgewidth=1.8)


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
    ticks: list[float] = [1.0]
    for tick in sorted((t for t in _RATIO_TICKS if low <= t <= high), key=lambda t: abs(math.log(t))):
        if all(abs(math.log(tick / other)) > 0.11 * span for other in ticks):
            ticks.append(float(tick))
    return sorted(ticks)


def steps_in_order(study: Comparison, steps: Sequence[RunSteps]) -> InlineSvg:
    """Step times in the order the steps ran, one line a run: shows warm-up, drift and outliers."""
    shown = [(v.name, [s for s in steps if s.variant == v.name and s.timed.size]) for v in study.variants]
    shown = [(name, runs) for name, runs in shown if runs]
    block, plot = 118.0, 78.0
    with style():
        height = block * len(shown) + 24
        figure = canvas(height)
        for index, (name, runs) in enumerate(shown):
            bottom = height - block * index - ONE_LINE - 4 - plot
            axes = figure.add_axes((44 / WIDTH, bottom / height, 1 - 48 / WIDTH, plot / height))
            for side in ("right", "top"):
                axes.spines[side].set_visible(False)
            figure.text(4 / WIDTH, (bottom + plot + 10) / height, shorten(name), fontweight="bold", parse_math=False)
            _draw_order(axes, runs)
            if index == len(shown) - 1:
                axes.set_xlabel("step (warm-up shaded)")
        return inline(figure, "Step times in the order the steps ran, one line a run, per variant.")


def _draw_order(axes: Axes, runs: Sequence[RunSteps]) -> None:
    colours = [COLOURS[name] for name in ("blue", "orange", "green", "purple", "vermillion", "sky")]
    left_out = max(run.warmup.size for run in runs)
    if left_out:
        axes.axvspan(-0.5, left_out - 0.5, color=BAND, linewidth=0, zorder=0.4)
    for index, run in enumerate(runs):
        axes.plot(np.arange(run.ms.size), run.ms, color=colours[index % len(colours)], linewidth=1.1)
    axes.set_xlim(-0.5, max(run.ms.size for run in runs) - 0.5)
    axes.set_ylim(bottom=0)
    axes.locator_params(axis="y", nbins=3)
    axes.yaxis.set_major_formatter(lambda value, _: fmt.duration_ms(value, 2) if value else "0")
