"""The page of `steptrace analyze`: summary.json's content as one self-contained HTML file."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from steptrace import format as fmt
from steptrace.documents.finding import PREDICTED_SYNCS
from steptrace.documents.overview import part_name
from steptrace.documents.quality import CheckCode
from steptrace.documents.ranks import Ranks
from steptrace.documents.steps import measured_figures
from steptrace.documents.subject import subjects_of
from steptrace.documents.summary import Summary, TraceSummary
from steptrace.files import write_text
from steptrace.findings.headline import step_lengths_of
from steptrace.report.charts.cells import Piece
from steptrace.report.charts.palette import colour_of
from steptrace.report.charts.strip import MOST_LYING
from steptrace.report.page.findings import device_of_traces, findings
from steptrace.report.page.first_steps import first_steps_box
from steptrace.report.page.markup import Html, page, render
from steptrace.report.page.section import Explained, keyed_bar, note, section
from steptrace.report.trace.across import lanes_picture, parts_picture, parts_table, steps_picture
from steptrace.report.trace.answer import (
    Predicted,
    cautions,
    first_of_all,
    first_of_one,
    headline,
    headline_of_all,
    nothing_to_advise,
    removable,
    single_ranks,
    why,
)
from steptrace.report.trace.predicted import predicted_parts
from steptrace.report.trace.sample import sample
from steptrace.report.trace.sections import parts_of, top_picture, visible_shares, why_absent
from steptrace.report.trace.side_by_side import rank_sections, side_by_side
from steptrace.report.trace.view import TraceView, title_of_several, trace_views
from steptrace.words.headline import step_lengths_texts
from steptrace.words.notes import trace_warnings
from steptrace.words.pictures import NO_ROOM, SAMPLE, SECTIONS
from steptrace.words.reason import MORE_TABLES, QUESTION, QUESTION_OF_RANKS

_PREDICTED: Final = "Predicted for a GPU"


def write(
    summary: Summary,
    out: Path,
    title: str | None = None,
    predicted: Predicted | None = None,
    excerpt: Path | None = None,
) -> None:
    """Write the page of a summary.json's content.

    Args:
        summary: the content.
        out: the page's file.
        title: its heading; default: the name of the trace, or how many there are and in which folder.
        predicted: of the same program on a GPU that is not there; shown with one trace.
        excerpt: a small trace of the step in the picture, which the page of one trace carries for download.

    Raises:
        RecordError: the summary holds no traces.
    """
    traces = trace_views(summary)
    title = title or (traces[0].title if len(traces) == 1 else title_of_several(traces))
    data = None if excerpt is None else excerpt.read_bytes()
    write_text(out, page_html(title, traces, summary.ranks, summary.warnings, predicted, data))


def page_html(
    title: str,
    traces: Sequence[TraceView],
    ranks: Ranks | None,
    warnings: Sequence[str] = (),
    predicted: Predicted | None = None,
    excerpt: bytes | None = None,
) -> str:
    """The whole page: one trace with a section a subject, or all side by side and then each with its main sections."""
    if len(traces) == 1:
        return _page_of_one(title, traces[0], warnings, predicted, excerpt)
    return _page_of_several(title, traces, ranks, warnings)


#: The most bytes of a page, so that it can be sent.
MOST_BYTES: Final = 400_000


def _page_of_one(
    title: str, view: TraceView, warnings: Sequence[str], predicted: Predicted | None, excerpt: bytes | None
) -> str:
    """The page of one trace. Where it would be too large, it has fewer folded tables, and at last no small trace."""
    tables = _tables(view)
    while True:
        shown, body = _sections(view, tables=tables)
        if predicted is not None:
            shown = [("predicted", _PREDICTED), *shown]
            body = section("predicted", _PREDICTED, predicted_parts(*predicted)) + body
        top = _Top(
            answer=headline(view.trace, predicted), picture=top_picture(view, excerpt), to_do=_first(view, predicted)
        )
        intro = _intro(title, [view], shown, warnings, top)
        html = page(f"{title} – steptrace", intro + body, shown)
        if len(html.encode(errors="replace")) < MOST_BYTES or (not tables and excerpt is None):
            return html
        if tables:
            del tables[max(tables, key=lambda name: len(tables[name]))]
        else:
            excerpt = None


def _tables(view: TraceView) -> dict[str, Html]:
    """The folded tables of a trace by the names of their subjects, of those that have something to show."""
    tables = {}
    for subject in subjects_of(TraceSummary):
        parts = parts_of(view, subject) if subject.folded else None
        if parts is not None:
            tables[subject.name] = section(subject.name, subject.heading, parts, level=3)
    return tables


def _page_of_several(title: str, traces: Sequence[TraceView], ranks: Ranks | None, warnings: Sequence[str]) -> str:
    """The page of several traces. Where it would be too large, fewer have a section, and then a bar at the top."""
    room = _MOST_SECTIONS
    most_bars = _MOST_BARS
    telling = sample(traces, ranks)
    while True:
        sections = _sections_of_traces(traces, telling, room)
        html = _with_sections(title, traces, telling, ranks, warnings, sections, most_bars)
        over = len(html.encode(errors="replace")) - MOST_BYTES
        if over < 0 or (len(sections) == 1 and not most_bars):
            return html
        if len(sections) > 1:
            room -= over + 1
        else:
            most_bars = 0


def _with_sections(  # noqa: PLR0913 - what the page says of all traces
    title: str,
    traces: Sequence[TraceView],
    telling: Sequence[int],
    ranks: Ranks | None,
    warnings: Sequence[str],
    sections: Mapping[str, tuple[str, Html]],
    most_bars: int,
) -> str:
    """The page of several traces.

    Args:
        title: its heading.
        traces: all of them.
        telling: the places of those that are shown.
        ranks: what they say together.
        warnings: what to know of all of them.
        sections: headings and sections of single traces by their ids.
        most_bars: traces that have a bar each at the top; of more only the sample has.
    """
    is_low = len(traces) <= MOST_LYING
    chosen = [traces[place] for place in sorted(telling)]
    together = [
        *([note(SAMPLE.format(shown=len(chosen), all=len(traces)))] if len(chosen) < len(traces) else []),
        side_by_side({f"trace-{place}": traces[place] for place in sorted(telling)}, sections),
        *([] if is_low else [Explained(lanes_picture(ranks))]),
        *parts_table(traces),
        *steps_picture(chosen),
    ]
    body = section("ranks", "All traces", together)
    toc = [("ranks", "All traces")]
    steps = traces[0].steps if len({view.steps for view in traces}) == 1 else 0
    shown_ranks = [view.trace.rank for view in chosen]
    for id_, heading, parts in () if ranks is None else rank_sections(ranks, steps, shown_ranks):
        body += section(id_, heading, parts)
        toc.append((id_, heading))
    on_ranks = () if ranks is None else (*ranks.findings, *single_ranks(ranks))
    if on_ranks:
        body += section("findings", "Findings on the ranks", [Explained(findings(on_ranks))])
        toc.append(("findings", "Findings on the ranks"))
    for id_, (heading, html) in sections.items():
        body += html
        toc.append((id_, heading))
    if len(sections) < len(traces):
        body += note(SECTIONS.format(shown=len(sections), all=len(traces))).html
    first = first_of_all(traces, ranks)
    top = _Top(
        answer=headline_of_all([view.trace for view in traces], ranks),
        picture=parts_picture(traces if len(traces) <= most_bars else chosen)
        + (lanes_picture(ranks, traces) if is_low else Html("")),
        to_do=first_steps_box(first.items, more=first.more, anchor=first.anchor, nothing=nothing_to_advise(traces)),
    )
    intro = _intro(title, traces, toc, warnings, top)
    return page(f"{title} – steptrace", intro + body, toc)


#: What the sections of single traces may take of a page, in characters: with the rest it stays below 400 kB.
_MOST_SECTIONS: Final = 200_000
#: Traces that have a bar each in the picture at the top.
_MOST_BARS: Final = 128


def _sections_of_traces(traces: Sequence[TraceView], telling: Sequence[int], room: int) -> dict[str, tuple[str, Html]]:
    """Heading and section of single traces by their ids, in the order of the traces: as many as a page can hold.

    Args:
        traces: all of them.
        telling: the places of those that are shown, the most telling first.
        room: the most characters that they may take, except that the first always has a section.
    """
    sections: dict[int, tuple[str, Html]] = {}
    size = 0
    for place in telling:
        view = traces[place]
        id_ = f"trace-{place}"
        sentences = Html("<p>{}</p>").format(
            " ".join([headline(view.trace), *cautions([view]), *step_lengths_texts(step_lengths_of(view.trace))])
        )
        html = section(id_, view.title, [Explained(sentences + _sections(view, f"{id_}-")[1])], folded=True)
        size += len(html)
        if sections and size > room:
            break
        sections[place] = (view.title, html)
    return {f"trace-{place}": sections[place] for place in sorted(sections)}


def _lengths(trace: TraceSummary) -> list[str]:
    """How the lengths of a step on the page go together; the picture of a step says it of its own length."""
    lengths = step_lengths_of(trace)
    return step_lengths_texts(lengths if trace.timeline is None else replace(lengths, span=None))


def _first(view: TraceView, predicted: Predicted | None) -> Html:
    """What to do first on one trace, or that there is nothing."""
    chosen = first_of_one(view, predicted)
    is_predicted = bool(chosen) and chosen[0].rule == PREDICTED_SYNCS
    more = 0 if is_predicted else len(view.trace.findings) - len(chosen)
    anchor = "predicted" if is_predicted else "findings"
    return first_steps_box(chosen, more=more, anchor=anchor, nothing=nothing_to_advise([view]))


@dataclass(frozen=True)
class _Top:
    """What a page leads with: its answer, a picture, and what to do first."""

    answer: str
    picture: Html
    to_do: Html


@dataclass(frozen=True)
class _Care:
    """A warning, and the title of its trace, on a page with several."""

    text: str
    trace: str | None = None


def _intro(
    title: str,
    traces: Sequence[TraceView],
    toc: Sequence[tuple[str, str]],
    warnings: Sequence[str],
    top: _Top,
) -> Html:
    first = traces[0]
    alone = len(traces) == 1
    # Without steps there is no figure of one: such figures are left out, not "not measured".
    shown = [
        figure
        for figure in measured_figures(*(view.trace for view in traces))
        if not figure.name.endswith("_per_step") or any(view.trace.steps for view in traces)
    ]
    shown = [f for f in shown if any(view.has_gpu or getattr(view.trace, f.name) is not None for view in traces)]
    figures = [(f.heading, fmt.with_unit(getattr(first.trace, f.name), f.unit)) for f in shown] if alone else []
    of_record = _facts(first) if alone else [("Device", _devices(traces)), ("Traces", str(len(traces)))]
    # What the headline has need not stand there twice.
    in_headline: tuple[CheckCode, ...] = ("gpu_work",)
    warned = [trace_warnings(view.trace.quality, without=() if view.has_gpu else in_headline) for view in traces]
    return render(
        "trace/intro",
        traces=traces,
        title=title,
        question=QUESTION if alone else QUESTION_OF_RANKS,
        headline=top.answer,
        why=why(traces),
        picture=top.picture,
        goes=_where_it_goes(first.trace) if alone else "",
        caution=cautions(traces),
        recorded=_how_recorded(first if alone else None),
        device=device_of_traces(
            [view.trace.device_name for view in traces], has_gpu=any(view.has_gpu for view in traces)
        ),
        first=top.to_do,
        facts=[*((name, text) for name, text in of_record if text is not None), *figures],
        terms=[f"StepFigures.{figure.name}" for figure in shown],
        toc=toc,
        care=[
            *(_Care(f"{fmt.capitalised(text)}.") for text in warnings),
            *(
                _Care(text, trace=None if alone else view.title)
                for view, texts in zip(traces, warned, strict=True)
                for text in texts
            ),
        ],
    )


def _how_recorded(alone: TraceView | None) -> list[str]:
    """How the figures were recorded, in sentences; `alone` is the only trace, None of several."""
    if alone is None:
        return ["All figures were recorded under the profiler, which can make steps longer."]
    unprofiled = alone.trace.unprofiled_step_ns is not None
    which = "All figures but the unprofiled step time" if unprofiled else "All figures"
    sentences = [f"{which} were recorded under the profiler, which can make steps longer."]
    if alone.steps > 1:
        sentences.append(f"Counts and sums per step are totals over the {alone.steps} steps, divided by {alone.steps}.")
    return [*sentences, *_lengths(alone.trace)]


def _facts(view: TraceView) -> list[tuple[str, str | None]]:
    """What one trace is a record of, and how long its steps take; None is left out."""
    trace = view.trace
    coverage = view.trace.quality.launch_coverage
    unprofiled = None if trace.unprofiled_step_ns is None else fmt.duration_ns(trace.unprofiled_step_ns)
    several = len(trace.steps) > 1
    profiled = "Profiled step, mean" if several else "Profiled step"
    span = "Span of a step, mean" if several else "Span of the step"
    apart = (
        view.step_ms is not None
        and view.span_ms is not None
        and fmt.duration_ms(view.span_ms) != fmt.duration_ms(view.step_ms)
    )
    return [
        ("Device", view.trace.device_name or (None if trace.device is None else f"GPU {trace.device}")),
        ("Rank", None if trace.rank is None else str(trace.rank)),
        ("Steps", str(len(trace.steps))),
        ("Unprofiled step, median", unprofiled),
        ("Unprofiled step, mean", fmt.duration_ns(trace.unprofiled_mean_ns) if trace.step_kinds else None),
        (profiled, fmt.duration_ms(view.step_ms) if trace.steps else None),
        (span, fmt.duration_ms(view.span_ms) if apart else None),
        ("GPU's span", fmt.duration_ns(trace.gpu.span_ns) if view.has_gpu and not trace.steps else None),
        ("GPU work with its launch", fmt.share(coverage) if coverage is not None and coverage < 1 else None),
    ]


def _where_it_goes(trace: TraceSummary) -> Html:
    """A bar of the step's parts, and a list of the visible parts with their shares; empty if the parts are not known.

    Shares have a decimal, so that readers can add up the parts of the GPU's busy time.
    """
    return keyed_bar(
        [
            Piece(
                share, colour_of(name), f"{part_name(name)} {fmt.share_to_tenths(share)}{removable(trace, name, share)}"
            )
            for name, share in visible_shares(trace).items()
        ]
    )


def _devices(traces: Sequence[TraceView]) -> str | None:
    """The names of all traces' GPUs, each with its number; None where there is no GPU or no name."""
    names = Counter(view.trace.device_name for view in traces if view.trace.device_name)
    return ", ".join(f"{count} × {name}" if count > 1 else name for name, count in names.items()) or None


def _sections(
    view: TraceView, prefix: str = "", tables: Mapping[str, Html] | None = None
) -> tuple[list[tuple[str, str]], Html]:
    """The sections of one trace in the order of its subjects, with the contents.

    The findings stand behind the overview. What is not shown is named with its reason in a line at the end. With a
    prefix, of one of several traces, there are the main sections alone.

    Args:
        view: the trace.
        prefix: begins the ids of the sections.
        tables: the folded tables that the page has room for, by the names of their subjects.
    """
    shown = list[tuple[str, str]]()
    body = Html("")
    absent = dict[str, list[str]]()
    level = 3 if prefix else 2
    tables = tables or {}
    for subject in subjects_of(TraceSummary):
        if prefix and (subject.folded or "of_one_trace" in subject.traits):
            continue
        if subject.name in tables:
            pass  # all of these stand together, behind the other sections
        elif (parts := parts_of(view, subject)) is None:
            absent.setdefault(why_absent(view, subject), []).append(subject.heading)
        elif subject.folded:
            absent.setdefault(NO_ROOM, []).append(subject.heading)
        elif "at_top" not in subject.traits:
            id_ = prefix + subject.name
            body += section(id_, subject.heading, parts, level=level)
            shown.append((id_, subject.heading))
        # Also where that subject has nothing to show.
        if "before_findings" in subject.traits and view.trace.findings:
            items = findings(view.trace.findings)
            id_ = f"{prefix}findings"
            body += section(id_, "Findings", [Explained(items)], level=level)
            shown.append((id_, "Findings"))
    if tables:
        body += section("tables", MORE_TABLES, [Explained(Html("").join(tables.values()))], folded=True)
        shown.append(("tables", MORE_TABLES))
    reasons = "; ".join(f"{', '.join(names)} ({reason})" for reason, names in absent.items() if reason)
    rest = "Its other figures: run `steptrace analyze` on this trace alone." if prefix else ""
    last = " ".join(filter(None, [f"Not shown: {reasons}." if reasons else "", rest]))
    return shown, Html(body + note(last).html)
