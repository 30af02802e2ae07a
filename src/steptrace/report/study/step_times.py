"""The section "Step times": every step of every run, in the order they ran."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from markupsafe import Markup
from msgspec.structs import replace

from steptrace import format as fmt
from steptrace.documents.comparison import Comparison
from steptrace.documents.run import RunResult
from steptrace.errors import RecordError
from steptrace.format import NS_PER_MS
from steptrace.report.charts.scale import Scale, ticks
from steptrace.report.charts.svg import ONE_LINE, WIDTH, Drawing
from steptrace.report.page.markup import Html
from steptrace.report.page.section import picture
from steptrace.report.study.variants import variants_shown

#: The most points of a line. A line through more steps is drawn through the least and the greatest step of groups of
#: steps. If there are many lines, each has fewer points, so that all together have no more than `_POINTS_IN_ALL`.
_MOST_POINTS: Final = 200
_FEWEST_POINTS: Final = 30
_POINTS_IN_ALL: Final = 1_000
#: Height of the key of the runs' lines in pixels, and the most runs in it.
_KEY: Final = 18.0
_MOST_KEYS: Final = 6


@dataclass(frozen=True)
class RunSteps:
    """The step times of one run in milliseconds, in the order they ran.

    `left_out` says per step whether it counts as warm-up; profiled steps are not among them.
    """

    variant: str
    repeat: int
    ms: npt.NDArray[np.float64]
    left_out: npt.NDArray[np.bool_]

    @property
    def timed(self) -> npt.NDArray[np.float64]:
        """The steps that the comparison uses."""
        return self.ms[~self.left_out]

    @property
    def warmup(self) -> npt.NDArray[np.float64]:
        """The steps that were left out as warm-up."""
        return self.ms[self.left_out]


def step_times(study: Comparison, comparison: Path | str) -> Html | None:
    """Every step of the files beside comparison.json, one line a run: warm-up, drift and outliers; None without any."""
    whole = study
    study = replace(study, variants=tuple(variants_shown(study)))
    steps = load_steps(study, comparison)
    if not study.measured or not any(run.timed.size for run in steps):
        return None
    without_steps = sum(variant.runs_ok for variant in study.variants) - len(steps)
    caption = "One scale; warm-up is shaded, and what is longer than any timed step is cut off."
    if left_out := len(whole.variants) - len(study.variants):
        caption += f" {fmt.plural(left_out, 'more variant')} not drawn."
    if without_steps:
        caption += f" {fmt.plural(without_steps, 'run')} without a steps.parquet not drawn."
    return Html(picture(steps_in_order(study, steps), "Steps in the order they ran", caption).html)


def load_steps(study: Comparison, comparison: Path | str) -> tuple[RunSteps, ...]:
    """The step times of every run that ended well and whose steps.parquet is there, in the study's order.

    Args:
        study: the comparison.
        comparison: its file. Steps are looked for beside it, so that a results folder can be moved or copied, and never
            below the working directory, where another run of the same name may lie.
    """
    runs = []
    for variant in study.variants:
        for run in variant.runs:
            path = _steps_path(Path(comparison).parent, variant.name, run)
            if run.status == "ok" and path is not None:
                runs.append(_read_steps(path, variant.name, run))
    return tuple(runs)


def _steps_path(folder: Path, variant: str, run: RunResult) -> Path | None:
    candidates = [folder / variant / f"run{run.repeat}", folder.joinpath(*Path(run.path).parts[-2:])]
    return next((path for place in candidates if (path := place / "steps.parquet").is_file()), None)


def _read_steps(path: Path, variant: str, run: RunResult) -> RunSteps:
    try:
        # `read_table`, `sort_by` and `to_numpy` would import all of pandas.
        with pq.ParquetFile(path) as file:
            columns = file.read(columns=["phase", "step", "step_ns"]).to_pydict()
        order = np.argsort(columns["step"], kind="stable")
        phase = np.array(columns["phase"])[order]
        ms = np.array(columns["step_ns"], dtype=np.float64)[order] / NS_PER_MS
    except (OSError, pa.ArrowInvalid, KeyError) as error:
        raise RecordError(f"step times cannot be read ({error})", where=path, next_step="run the study again") from None
    unprofiled = phase != "profiled"
    left_out = phase == "warmup"
    first_timed = int(np.argmax(phase == "timed")) if bool((phase == "timed").any()) else len(phase)
    # Steps of the timed phase that count as warm-up still in the comparison.
    left_out[first_timed : first_timed + (run.warmup_left_out or 0)] = True
    return RunSteps(variant, run.repeat, ms[unprofiled], left_out[unprofiled])


def steps_in_order(study: Comparison, steps: Sequence[RunSteps]) -> Markup:
    """Step times in the order the steps ran, one line a run: shows warm-up, drift and outliers."""
    by_variant = {
        variant.name: [s for s in steps if s.variant == variant.name and s.timed.size] for variant in study.variants
    }
    shown = {name: runs for name, runs in by_variant.items() if runs}
    block = 118.0
    plot = 78.0
    drawing = Drawing(block * len(shown) + 24 + _KEY)
    scale = Scale.showing([float(end) for runs in shown.values() for run in runs for end in _ends(run)])
    most = min(max(_POINTS_IN_ALL // sum(map(len, shown.values())), _FEWEST_POINTS), _MOST_POINTS)
    for index, (name, runs) in enumerate(shown.items()):
        drawing.row_label(block * index, name, _left_out_note(runs))
        _draw_order(drawing, runs, (block * index + ONE_LINE + 4, plot), scale, most)
    drawing.text((WIDTH / 2, block * len(shown) + 12), "step", anchor="middle")
    _draw_key(drawing, sorted({run.repeat for runs in shown.values() for run in runs}), block * len(shown) + 30)
    return drawing.svg("Step times in the order the steps ran, one line a run, per variant, on one scale.")


def _ends(run: RunSteps) -> tuple[float, float]:
    """The shortest and the longest of the steps that count."""
    return float(run.timed.min()), float(run.timed.max())


def _stroke(repeat: int) -> tuple[str, str]:
    """Colour and dashes of a run: the same in each variant, and no colour that stands for a part of a step."""
    return ("ink", "grey")[repeat % 2], ("", "4 2", "1 2")[repeat // 2 % 3]


def _draw_key(drawing: Drawing, repeats: Sequence[int], y: float) -> None:
    for number, repeat in enumerate(repeats[:_MOST_KEYS]):
        left = 44.0 + 60 * number
        stroke, dash = _stroke(repeat)
        drawing.line((left, y), (left + 16, y), stroke, dash=dash)
        drawing.text((left + 20, y), f"run {repeat}")


def _left_out_note(runs: Sequence[RunSteps]) -> str:
    counts = sorted({run.warmup.size for run in runs})
    if not counts[-1]:
        return ""
    steps = fmt.plural(counts[0], "warm-up step") if len(counts) == 1 else f"{counts[0]} to {counts[-1]} warm-up steps"
    return f"{steps}{' per run' * (len(runs) > 1)} left out"


def _draw_order(
    drawing: Drawing, runs: Sequence[RunSteps], place: tuple[float, float], scale: Scale, most: int
) -> None:
    """Draw the runs of a variant. Steps beyond the scale of all timed steps, such as a first step, are cut off."""
    top, height = place
    floor = top + height
    left = 44.0
    last = max(run.ms.size for run in runs)

    def at(step: float, ms: float) -> tuple[float, float]:
        return left + (WIDTH - left) * (step + 0.5) / last, floor - height * scale.share(ms)

    left_out = max(run.warmup.size for run in runs)
    if left_out:
        drawing.rect((left, top), (at(left_out - 0.5, scale.low)[0] - left, height), "band")
    for ms in scale.ticks():
        y = at(0, ms)[1]
        drawing.line((left, y), (WIDTH, y))
        drawing.text((left - 5, y), fmt.duration_ms(ms, 2) if ms else "0", anchor="end")
    for step in ticks(0, last - 1, 6):
        if step == int(step):
            drawing.text((at(step, scale.low)[0], floor + 9), fmt.plain(step), anchor="middle")
    for run in runs:
        stroke, dash = _stroke(run.repeat)
        drawing.curve([at(*point) for point in _outline(run.ms, most)], stroke, dash=dash)


def _outline(ms: npt.NDArray[np.float64], most: int) -> list[tuple[float, float]]:
    """Steps with their times; of more than `most` steps the least and the greatest of each group, in order."""
    if ms.size <= most:
        return [(float(step), float(time)) for step, time in enumerate(ms)]
    groups = np.array_split(np.arange(ms.size), most // 2)
    kept = [sorted((int(group[ms[group].argmin()]), int(group[ms[group].argmax()]))) for group in groups]
    return [(float(step), float(ms[step])) for step in dict.fromkeys(step for pair in kept for step in pair)]
