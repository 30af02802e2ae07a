"""The index: the result of each study and each imported trace, and where its page is."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from steptrace import format as fmt
from steptrace.documents.base import read
from steptrace.documents.comparison import Comparison
from steptrace.documents.summary import Summary
from steptrace.files import write_text
from steptrace.findings.verdict import broken_gates, verdict_of
from steptrace.report.page.findings import DeviceNote, device_of_study, device_of_traces
from steptrace.report.page.markup import page, render
from steptrace.report.study.variants import load_study
from steptrace.report.trace.words import headline_of_all


@dataclass(frozen=True)
class IndexEntry:
    """One line of the index: a study or an imported trace, what is wrong with it, and the page that tells of it."""

    name: str
    title: str
    headline: str
    href: str
    scale: str | None
    machine: str | None
    problems: tuple[str, ...]
    device: DeviceNote | None
    detail: str


def render_index(comparisons: Sequence[Path], out: Path, imported: Sequence[Path] = ()) -> None:
    """Write the index of all studies.

    Args:
        comparisons: the studies' comparison.json files. A study's page is `<study>.html` beside `out`.
        out: the page, one HTML file.
        imported: summary.json files of imported traces. Their page is the report.html beside each.

    Raises:
        RecordError: a comparison or a summary is missing or not what steptrace writes.
    """
    body = render("index", studies=load_index(comparisons), traces=load_imported(imported, out.parent))
    write_text(out, page("steptrace", body, []))


def load_index(comparisons: Sequence[Path | str]) -> tuple[IndexEntry, ...]:
    """One entry per comparison.json, in their order. A study's page is `<study>.html` beside the index."""
    return tuple(_study_entry(load_study(path)) for path in comparisons)


def _study_entry(study: Comparison) -> IndexEntry:
    runs = sum(len(variant.runs) for variant in study.variants)
    ok = sum(variant.runs_ok for variant in study.variants)
    broken, verdict = broken_gates(study), verdict_of(study)
    return IndexEntry(
        name=study.study,
        title=study.title,
        headline=" ".join([verdict.sentence, *verdict.details]),
        href=f"{study.study}.html",
        scale=study.scale,
        machine=study.machine,
        problems=_problems(study),
        device=device_of_study(study),
        detail=f"{fmt.plural(len(study.variants), 'variant')}, {ok} of {fmt.plural(runs, 'run')} ok"
        + (f", {broken} of {fmt.plural(len(study.gates), 'gate')} broken" if broken else ""),
    )


def _problems(study: Comparison) -> tuple[str, ...]:
    """What must not be overlooked, in a word or two each; a study is only ok where there is none of it."""
    answers = {variant.equivalence.status for variant in study.variants}
    whole = all(variant.status == "ok" and variant.runs_ok == len(variant.runs) for variant in study.variants)
    problems = {
        "incomplete": not whole,
        "gates broken": broken_gates(study) > 0,
        "answer differs": "differs" in answers,
        "answer not checked": "failed" in answers,
    }
    return tuple(word for word, holds in problems.items() if holds)


def load_imported(summaries: Sequence[Path | str], pages: Path | str) -> tuple[IndexEntry, ...]:
    """One entry per summary.json of an imported trace; links to the report.html beside it start at `pages`."""
    return tuple(_trace_entry(Path(path), Path(pages)) for path in summaries)


def _trace_entry(path: Path, pages: Path) -> IndexEntry:
    summary = read(path, Summary)
    traces = summary.traces
    first = traces[0] if traces else None
    warnings = sum(len(trace.quality.warnings) for trace in traces)
    return IndexEntry(
        name=path.parent.name,
        title=path.parent.name,
        headline=headline_of_all(traces, summary.ranks),
        href=Path(os.path.relpath(path.parent / "report.html", pages)).as_posix(),
        scale=None,
        machine=None if first is None else first.device_name,
        problems=(),
        device=device_of_traces([trace.device_name for trace in traces], has_gpu=any(t.gpu_measured for t in traces)),
        detail=f"{fmt.plural(len(traces), 'trace')}, {fmt.plural(warnings, 'warning')}",
    )
