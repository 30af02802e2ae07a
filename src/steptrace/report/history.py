"""The page and the tables of `steptrace history`: a study's kept results, oldest first."""

from collections.abc import Iterator

from steptrace import format as fmt
from steptrace.documents.kept import History, KeptRun, KeptVariant, StudyHistory
from steptrace.markdown import clean, table
from steptrace.report.draw.cells import MACHINE_COLOURS, Dot, course_cell
from steptrace.report.draw.svg import InlineSvg
from steptrace.report.page.markup import page, render

#: Of more variants than these only the tables are shown.
MOST_CHARTS = 12
_CHART_HEIGHT = 90
HEAD = ("Kept as", "Date", "Step", "Ratio to the result before", "Verdict", "Changed since the result before")


def page_html(found: History) -> str:
    """The whole page."""
    toc = [(f"study-{k}", study.study) for k, study in enumerate(found.studies)]
    body = render(
        "history",
        found=found,
        toc=toc,
        head=HEAD,
        machines_of=machines_of,
        studies=[(id_, study, _of_study(study)) for (id_, _), study in zip(toc, found.studies, strict=True)],
    )
    return page("History – steptrace", body, toc)


def markdown(found: History) -> str:
    """The same as Markdown."""
    parts = ["## Step times over time", ""]
    for study in found.studies:
        for variant in variants_of(study):
            parts += [f"### {clean(study.study)}: {clean(variant)}", "", table(HEAD, rows(study, variant))]
    parts += [f"- skipped: {clean(one.file)}: {clean(one.reason)}" for one in found.skipped]
    return "\n".join(parts)


def variants_of(study: StudyHistory) -> list[str]:
    """The variants of all its results, in the order they appear."""
    return list(dict.fromkeys(variant.name for run in study.results for variant in run.variants))


def rows(study: StudyHistory, variant: str) -> list[tuple[str, ...]]:
    """A row for every result that has the variant."""
    return [
        (
            run.name,
            "now" if run.date is None else run.date[:16].replace("T", " "),
            fmt.step_time(kept.median_ms, kept.low_ms, kept.high_ms)[0],
            "–" if kept.ratio is None else fmt.ratio(kept.ratio),
            kept.verdict or "–",
            _changed(run, kept),
        )
        for run, kept in _with(study, variant)
    ]


def _with(study: StudyHistory, variant: str) -> Iterator[tuple[KeptRun, KeptVariant]]:
    for run in study.results:
        for kept in run.variants:
            if kept.name == variant:
                yield run, kept


def _changed(run: KeptRun, kept: KeptVariant) -> str:
    """What is not as before; the configuration is not as in the result that this one is judged against."""
    return ", ".join([*(["its configuration"] if kept.reconfigured else []), *environment_changes(run)]) or "–"


def environment_changes(run: KeptRun) -> list[str]:
    """What of the environment is not as in the result before, in words."""
    return [f"{c.key} {c.before or 'none'} → {c.now or 'none'}" for c in run.changes]


def machines_of(study: StudyHistory) -> list[tuple[str, str]]:
    """The machines of a study's results, each with the colour of its values."""
    machines = dict.fromkeys(run.machine for run in study.results)
    return [(machine, MACHINE_COLOURS[k % len(MACHINE_COLOURS)]) for k, machine in enumerate(machines)]


def _of_study(study: StudyHistory) -> list[tuple[str, InlineSvg | None, list[tuple[str, ...]]]]:
    names = variants_of(study)
    return [(name, _chart(study, name) if k < MOST_CHARTS else None, rows(study, name)) for k, name in enumerate(names)]


def _chart(study: StudyHistory, variant: str) -> InlineSvg | None:
    """The course of its step time; None for one result, which stands in the table."""
    numbers = {machine: k for k, (machine, _) in enumerate(machines_of(study))}
    dots = [
        Dot(
            *(kept.median_ms, kept.low_ms, kept.high_ms, _tip(run, kept), numbers[run.machine]),
            bool(run.changes) or kept.reconfigured,
        )
        for run, kept in _with(study, variant)
    ]
    if len(dots) < 2:
        return None
    return course_cell(dots, f"Step time of {variant} over {len(dots)} results", _CHART_HEIGHT)


def _tip(run: KeptRun, kept: KeptVariant) -> str:
    changed = f"; changed before it: {_changed(run, kept)}" if run.changes or kept.reconfigured else ""
    return f"{run.name}: {fmt.duration_ms(kept.median_ms)}, {run.machine}{changed}"
