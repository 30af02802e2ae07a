"""The section "Step times": every step of every run, and the ratios with their intervals."""

from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from steptrace.documents.comparison import Comparison
from steptrace.report.page.markup import Html, render
from steptrace.report.study import step_charts as draw
from steptrace.report.study.load import load_steps
from steptrace.report.study.model import RunSteps, is_baseline, runs_ok, variants_shown


def step_times(study: Comparison, comparison: Path | str) -> Html:
    """Step times run by run, of the files beside comparison.json, and the ratios with their intervals."""
    whole, study = study, replace(study, variants=tuple(variants_shown(study)))
    steps = load_steps(study, comparison)
    has_ratio = not study.on_simulated_gpu and any(v.ratio is not None and not is_baseline(v) for v in study.variants)
    return render(
        "study/step_times",
        study=study,
        left_out=len(whole.variants) - len(study.variants),
        distribution=draw.step_times(study, steps) if any(run.timed.size for run in steps) else None,
        ratios=draw.ratios(study) if has_ratio else None,
        in_order=draw.steps_in_order(study, steps) if any(run.timed.size for run in steps) else None,
        without_steps=_runs_without_steps(study, steps),
    )


def _runs_without_steps(study: Comparison, steps: Sequence[RunSteps]) -> int:
    return sum(runs_ok(variant) for variant in study.variants) - len(steps)
