"""The section "Trace view" of a study's page: one step of every variant as a picture, and its excerpt for Perfetto."""

from dataclasses import dataclass
from pathlib import Path

from steptrace.documents.base import read
from steptrace.documents.comparison import Comparison, VariantResult
from steptrace.documents.summary import Summary, TraceExcerpt
from steptrace.documents.timeline import Timeline
from steptrace.errors import RecordError
from steptrace.report.draw.timeline import MOST_POINTED, timeline_figure
from steptrace.report.page.markup import Html, render
from steptrace.report.study.model import variants_shown

#: More pictures than this start folded, but for the first; more than `_MOST` are not drawn: a page is to stay small.
_MANY, _MOST = 4, 6
#: Tooltips in all pictures of a page, some 130 bytes each, and in one picture at least.
_POINTED_IN_ALL, _POINTED_AT_LEAST = 800, 60


@dataclass(frozen=True)
class StepView:
    """One variant's step: the entry `timeline` of a run's summary.json, and the run's excerpt if it has one.

    `excerpt` is `trace_excerpt` of summary.json, and `path` its file from the folder that holds results/ and reports/;
    None without one.
    """

    variant: VariantResult
    timeline: Timeline
    excerpt: TraceExcerpt | None
    path: str | None


def trace_view(study: Comparison, comparison: Path | str) -> Html | None:
    """One picture a variant, all to the same scale of time; None if no run left one."""
    views = [view for variant in study.variants if (view := step_view(Path(comparison), variant)) is not None]
    if not views:
        return None
    views.sort(key=lambda view: view.variant.name != study.baseline)
    chosen = variants_shown(study, _MOST)
    shown = [view for view in views if view.variant in chosen]
    rest = [view for view in views if view.variant not in chosen]
    scale = max(view.timeline.span_ns for view in shown)
    most = max(_POINTED_AT_LEAST, min(MOST_POINTED, _POINTED_IN_ALL // len(shown)))
    return render(
        "study/trace_view",
        blocks=[(view, timeline_figure(view.timeline, scale, most)) for view in shown],
        rest=rest,
        many=len(shown) > _MANY,
        kinds={lane.kind for view in shown for lane in view.timeline.lanes},
    )


def step_view(comparison: Path, variant: VariantResult) -> StepView | None:
    """The picture of the first run of a variant that has one; of several ranks that of the first."""
    for run in variant.runs:
        folder = comparison.parent / variant.name / f"run{run.repeat}"
        if run.status != "ok":
            continue
        try:
            summary = read(folder / "summary.json", Summary)
        except RecordError:  # a page can be made of comparison.json alone
            continue
        timeline = summary.traces[0].timeline if summary.traces else None
        if timeline is not None and timeline.lanes:
            excerpt = summary.trace_excerpt
            path = _path(comparison, folder / excerpt.file) if excerpt else None
            return StepView(variant, timeline, excerpt, path)
    return None


def _path(comparison: Path, file: Path) -> str | None:
    """An excerpt's path from the folder that holds results/ and reports/; None if the file is not there any more."""
    results = comparison.resolve().parents[1]
    kept = results.name == "results" and file.is_file()
    return file.resolve().relative_to(results.parent).as_posix() if kept else None
