"""Pictures of a study's tables, drawn by matplotlib."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pandas as pd

from steptrace import format as fmt
from steptrace.extras import named

if TYPE_CHECKING:  # matplotlib is in the extra `lab`
    from matplotlib.axes import Axes


def draw_step_times(
    times: pd.DataFrame, medians_ms: Mapping[str, Sequence[float]], title: str, ax: "Axes | None"
) -> "Axes":
    """Draw each variant's step time with its interval, over the medians of its single runs.

    Args:
        times: `LoadedStudy.step_times` of the measured variants.
        medians_ms: the median step of each run, by variant.
        title: of the picture.
        ax: where to draw; None: on new axes.
    """
    ax = _axes(ax, len(times))
    for place, (name, row) in enumerate(times.iterrows()):
        runs_ms = medians_ms[str(name)]
        ax.plot(runs_ms, [place] * len(runs_ms), "o", color="0.7", markersize=5, zorder=1)
        if pd.notna(row["low_ms"]):
            ax.plot([row["low_ms"], row["high_ms"]], [place, place], color="C0", linewidth=3, alpha=0.5, zorder=2)
        ax.plot(row["step_ms"], place, "D", color="C0", zorder=3)
    ax.set_xlabel("step time in ms: all runs, 95 % interval; grey: single runs")
    return _labelled(ax, list(map(str, times.index)), title)


def draw_syncs(syncs: pd.DataFrame, title: str, ax: "Axes | None") -> "Axes":
    """Draw `LoadedStudy.syncs`: measured where there is a measurement, predicted elsewhere."""
    counts = syncs["measured_per_step"].fillna(syncs["predicted_per_step"])
    ax = _axes(ax, len(counts))
    ax.barh(range(len(counts)), counts.to_numpy(dtype=float), color="C1")
    # Without its figure a row of 0 syncs would look like one that is not known.
    for place, value in enumerate(counts.to_numpy(dtype=float)):
        ax.text(0 if math.isnan(value) else value, place, f" {fmt.count(value)}", va="center")
    ax.set_xlim(0, 1.2 * max(counts.max(skipna=True), 1) if counts.notna().any() else 1)
    measured = syncs["measured_per_step"].notna()
    if measured.all():
        basis = "measured"
    elif measured.any():
        basis = "measured, else predicted"
    else:
        basis = "predicted"
    ax.set_xlabel(f"syncs per step, {basis}")
    return _labelled(ax, list(map(str, counts.index)), title)


def draw_gpu_use(gpu_use: pd.DataFrame, title: str, ax: "Axes | None") -> "Axes":
    """Draw `LoadedStudy.gpu_use`; without a GPU the picture says that nothing was measured."""
    shares = gpu_use[["busy_pct", "nvml_pct", "sm_weighted_pct"]]
    ax = _axes(ax, len(shares))
    if shares.isna().all(axis=None):
        ax.text(0.5, 0.5, "GPU utilisation: not measured (no GPU)", ha="center", va="center", transform=ax.transAxes)
        ax.set_xticks([])
        return _labelled(ax, list(map(str, shares.index)), title)
    names = {"busy_pct": "busy in the trace", "nvml_pct": "NVML, sampled", "sm_weighted_pct": "weighted by SMs"}
    for number, (column, name) in enumerate(names.items()):
        places = [place + (number - 1) * 0.25 for place in range(len(shares))]
        ax.barh(places, shares[column].to_numpy(dtype=float), height=0.22, label=name)
    ax.set_xlim(0, 100)
    ax.set_xlabel("% of the step")
    ax.legend(fontsize="small")
    return _labelled(ax, list(map(str, shares.index)), title)


def _axes(ax: "Axes | None", rows: int) -> "Axes":
    """The axes to draw on: those given, or new ones with room for so many rows."""
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
