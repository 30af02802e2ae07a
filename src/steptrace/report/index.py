"""The index: the result of each study and each imported trace, and where its page is."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from steptrace import format as fmt
from steptrace.documents.base import read
from steptrace.documents.comparison import Comparison
from steptrace.documents.summary import Summary
from steptrace.errors import RecordError
from steptrace.files import write_text
from steptrace.findings.answer import broken_gates
from steptrace.findings.verdict import verdict_of
from steptrace.report.page.findings import DeviceNote, device_of_study, device_of_traces
from steptrace.report.page.markup import Html, page, render
from steptrace.report.study.matrix import with_shown_names
from steptrace.report.study.small import small_picture
from steptrace.report.study.variants import load_study
from steptrace.report.trace.answer import headline_of_all


@dataclass(frozen=True)
class IndexEntry:
    """A study or an imported trace: its answer, its small picture, its problems, and its page.

    `links` lead to files beside its page, each with its words.
    """

    name: str
    title: str
    headline: str
    why: str
    href: str
    scale: str | None
    machine: str | None
    problems: tuple[str, ...]
    device: DeviceNote | None
    detail: str
    links: tuple[tuple[str, str], ...] = ()
    picture: Html | None = None

    @property
    def facts(self) -> tuple[str, ...]:
        """The scale, the machine, and the numbers of variants and runs, in words."""
        scale = None if self.scale is None else f"scale {self.scale}"
        return tuple(filter(None, (scale, self.machine, self.detail)))


#: The folder, beside the index, with results of real GPUs: a folder each with the studies' pages and results.
_REFERENCE: Final = "reference"


def render_index(comparisons: Sequence[Path], out: Path, imported: Sequence[Path] = ()) -> None:
    """Write the index of all studies.

    Args:
        comparisons: the studies' comparison.json files. A study's page is `<study>.html` beside `out`.
        out: the page, one HTML file. Results of real GPUs in `reference/` beside it are listed, too.
        imported: summary.json files of imported traces. Their page is the report.html beside each.

    Raises:
        RecordError: a comparison or a summary is missing or not what steptrace writes.
    """
    studies = load_index(comparisons, out.parent)
    traces = load_imported(imported, out.parent)
    has_studies = bool(studies) or not traces
    body = render(
        "index",
        title="Studies" if has_studies else "Traces",
        has_studies=has_studies,
        studies=studies,
        traces=traces,
        reference=_reference(out.parent),
    )
    write_text(out, page("steptrace", body, []))


def load_index(comparisons: Sequence[Path | str], pages: Path | str) -> tuple[IndexEntry, ...]:
    """One entry per comparison.json, in their order. A study's page is `<study>.html` in the folder `pages`."""
    return tuple(_study_entry(Path(path), Path(pages)) for path in comparisons)


def _reference(pages: Path) -> list[tuple[str, str, tuple[IndexEntry, ...]]]:
    """The folders with results of real GPUs: a folder's name, its machine, and its studies.

    One of another version of steptrace, which this one cannot read, is left out.
    """
    entries = []
    for folder in sorted(path for path in (pages / _REFERENCE).glob("*") if path.is_dir()):
        try:
            studies = load_index(sorted(folder.glob("*/comparison.json")), folder)
        except RecordError:
            continue
        if studies:
            machine = next((study.machine for study in studies if study.machine is not None), folder.name)
            entries.append((folder.name, machine, tuple(_below(study, folder, pages) for study in studies)))
    return entries


def _below(entry: IndexEntry, folder: Path, pages: Path) -> IndexEntry:
    """The entry of a study in a folder, with links that start at `pages`."""
    at = Path(os.path.relpath(folder, pages)).as_posix()
    links = tuple((words, f"{at}/{href}") for words, href in entry.links)
    return replace(entry, href=f"{at}/{entry.href}", links=links)


def _study_entry(path: Path, pages: Path) -> IndexEntry:
    study = with_shown_names(load_study(path))
    runs = sum(len(variant.runs) for variant in study.variants)
    ok = sum(variant.runs_ok for variant in study.variants)
    broken = broken_gates(study)
    verdict = verdict_of(study)
    notebook = pages / f"{study.study}.ipynb"
    return IndexEntry(
        name=study.study,
        title=study.title,
        headline=" ".join([verdict.sentence, *verdict.checks]),
        why=verdict.reason,
        href=f"{study.study}.html",
        scale=study.scale,
        machine=study.machine,
        problems=_problems(study),
        device=device_of_study(study),
        detail=f"{fmt.plural(len(study.variants), 'variant')}, {ok} of {fmt.plural(runs, 'run')} ok"
        + (f", {broken} of {fmt.plural(len(study.gates), 'gate')} broken" if broken else ""),
        links=(
            *([("notebook", notebook.name)] if notebook.is_file() else []),
            ("JSON", Path(os.path.relpath(path, pages)).as_posix()),
        ),
        picture=small_picture(study),
    )


def _problems(study: Comparison) -> tuple[str, ...]:
    """The problems of a study, in a word or two each; empty if it has none."""
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
        why="",
        headline=headline_of_all(traces, summary.ranks),
        href=Path(os.path.relpath(path.parent / "report.html", pages)).as_posix(),
        scale=None,
        machine=None if first is None else first.device_name,
        problems=(),
        device=device_of_traces([trace.device_name for trace in traces], has_gpu=any(t.gpu_measured for t in traces)),
        detail=f"{fmt.plural(len(traces), 'trace')}, {fmt.plural(warnings, 'warning')}",
    )
