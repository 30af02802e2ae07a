"""The page of `steptrace analyze`: summary.json's content as one self-contained HTML file."""

from collections import Counter
from collections.abc import Callable, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Final

from steptrace import format as fmt
from steptrace.documents.estimate import Estimate
from steptrace.documents.finding import PREDICTED_SYNCS
from steptrace.documents.overview import part_name
from steptrace.documents.prediction import PredictedStep, predicted_in_words
from steptrace.documents.quality import CheckCode
from steptrace.documents.ranks import Ranks
from steptrace.documents.steps import STEP_FIGURES
from steptrace.documents.subject import subjects_of
from steptrace.documents.summary import Summary, TraceSummary
from steptrace.engine.kinds import counts_in_words
from steptrace.files import write_text
from steptrace.findings.estimated import busy_words, memory_words, step_words
from steptrace.report.draw import Piece, colour_of
from steptrace.report.page.findings import device_of_traces, findings
from steptrace.report.page.markup import Html, breakable, definitions, page, render
from steptrace.report.page.parts import (
    Explained,
    Figure,
    Parts,
    facts,
    figures_table,
    keyed_bar,
    listing,
    note,
    section,
    site_table,
    subheading,
)
from steptrace.report.trace.sections import parts_of, why_absent
from steptrace.report.trace.words import (
    Predicted,
    TraceView,
    caution,
    first_of_all,
    first_of_one,
    headline,
    headline_of_all,
    lengths,
    nothing_to_advise,
    removable,
    trace_views,
    unprofiled,
)
from steptrace.words.quality import warnings as quality_warnings

_PREDICTED: Final = "Predicted for a GPU"
#: Explained below the table of all traces.
_TERMS: Final = (
    "GpuTime.exposed_comm_ns",
    "Overview.exposed_wait_ns",
    "GpuTime.overlap_pct",
    "Quality.launch_coverage",
)


def write(summary: Summary, out: Path, title: str | None = None, predicted: Predicted | None = None) -> None:
    """Write the page of a summary.json's content.

    Args:
        summary: the content.
        out: the page's file.
        title: its heading; default: the name of the trace, or how many there are.
        predicted: of the same program on a GPU that is not there; shown with one trace.

    Raises:
        RecordError: the summary holds no traces.
    """
    traces = trace_views(summary)
    title = title or (traces[0].title if len(traces) == 1 else f"{len(traces)} traces")
    write_text(out, page_html(title, traces, summary.ranks, summary.warnings, predicted))


def page_html(
    title: str,
    traces: Sequence[TraceView],
    ranks: Ranks | None,
    warnings: Sequence[str] = (),
    predicted: Predicted | None = None,
) -> str:
    """The whole page: one trace with a section a subject, or all side by side and then each with its main sections."""
    if len(traces) == 1:
        shown, body = _sections(traces[0])
        if predicted is not None:
            shown = [("predicted", _PREDICTED), *shown]
            body = section("predicted", _PREDICTED, _predicted(*predicted)) + body
        intro = _intro(title, traces, shown, warnings, _first(traces[0], predicted), headline(traces[0], predicted))
        return page(f"{title} – steptrace", intro + body, shown)
    body = section("ranks", "All traces", [_side_by_side(traces)])
    toc = [("ranks", "All traces")]
    steps = traces[0].steps if len({view.steps for view in traces}) == 1 else 0
    for id_, heading, parts in () if ranks is None else rank_sections(ranks, steps):
        body += section(id_, heading, parts)
        toc.append((id_, heading))
    on_ranks = () if ranks is None else ranks.findings
    if on_ranks:
        body += section("findings", "Findings on all ranks together", [Explained(findings(on_ranks))])
        toc.append(("findings", "Findings on all ranks"))
    for number, view in enumerate(traces):
        id_ = f"trace-{number}"
        sentences = Html("<p>{}</p>").format(" ".join([headline(view), *caution(view), *lengths(view)]))
        of_trace = sentences + _sections(view, f"{id_}-")[1]
        body += section(id_, view.title, [Explained(of_trace)], folded=True)
        toc.append((id_, view.title))
    first = render("page/first", nothing=nothing_to_advise(traces), **first_of_all(traces, on_ranks))
    intro = _intro(title, traces, toc, warnings, first, headline_of_all([view.trace for view in traces], ranks))
    return page(f"{title} – steptrace", intro + body, toc)


def _side_by_side(traces: Sequence[TraceView]) -> Explained:
    """Every trace in a row: its device, and what can be compared."""
    by_id = {f"trace-{number}": view for number, view in enumerate(traces)}

    def figure(heading: str, of: Callable[[TraceView], float | str | None], unit: str | None = None) -> Figure:
        return Figure(heading, {id_: of(view) for id_, view in by_id.items()}, unit)

    table = figures_table(
        "Trace",
        {id_: Html('<a href="#{}">{}</a>').format(id_, breakable(view.title)) for id_, view in by_id.items()},
        [
            figure(
                "Device", lambda view: view.trace.device_name or ("GPU without a name" if view.has_gpu else "no GPU")
            ),
            figure("Profiled step", lambda view: view.step_ms, "ms"),
            *(figure(one.heading, attrgetter(f"trace.{one.name}"), one.unit) for one in STEP_FIGURES),
            figure("Exposed communication", _exposed, "share"),
            figure("Exposed waiting", _exposed_wait, "share"),
            figure("Communication hidden", lambda view: view.trace.gpu.overlap_pct, "%"),
            figure("Syncs per step", lambda view: view.trace.syncs.per_step),
            figure("GPU work with its launch", lambda view: view.trace.quality.launch_coverage, "share"),
        ],
    )
    return Explained(table, definitions(_TERMS))


def _exposed(view: TraceView) -> float | None:
    """Of the steps, or without any of the GPU's span, communication that no computation hides."""
    overview = view.trace.overview
    exposed_ns = None if overview is None else overview.parts_ns.get("exposed_comm")
    if overview is None or exposed_ns is None or view.trace.gpu.exposed_comm_ns is None or not overview.window_ns:
        return None
    return exposed_ns / overview.window_ns


def _exposed_wait(view: TraceView) -> float | None:
    """Of the steps, or without any of the GPU's span, exposed communication that is waiting for other ranks."""
    overview = view.trace.overview
    if overview is None or overview.exposed_wait_ns is None or not overview.window_ns:
        return None
    return overview.exposed_wait_ns / overview.window_ns


def _predicted(prediction: PredictedStep, estimates: Sequence[Estimate]) -> Parts:
    """What the same program would do on a GPU that is not there."""
    kinds = counts_in_words(prediction.by_step, prediction.sites_by_step)
    ranks = len(prediction.by_rank)
    text = predicted_in_words(prediction, " on average") + (f": {kinds}" if kinds else "")
    sentences = [text + (f" on rank 0 of {ranks}; collectives are not estimated." if ranks > 1 else ".")]
    if unknown := prediction.unknown:
        sentences.append(f"{fmt.plural(len(unknown), 'more place')} may sync: the prediction does not cover them.")
    if early := prediction.early_reads:
        lines = ", ".join(fmt.place(one.file, one.line) for one in early if one.file is not None)
        sentences.append(
            f"A value may be wrong that is read while its copy to the host may be under way: {lines or 'unknown line'}."
        )
    if assumed := prediction.assumed:
        sentences.append(
            f"At {fmt.plural(len(assumed), 'place')} a value or size was assumed; later counts may differ."
        )
    badge = Html('<p><span class="badge warning">predicted, not measured</span> {}</p>').format(" ".join(sentences))
    table = figures_table(
        "GPU",
        {one.gpu: one.gpu for one in estimates},
        [
            Figure("Estimated step", {one.gpu: step_words(one) for one in estimates}),
            Figure("GPU busy", {one.gpu: busy_words(one) for one in estimates}),
            Figure("Limited by", {one.gpu: one.limited_by for one in estimates}),
            Figure("Launches", {one.gpu: one.launches for one in estimates}),
            Figure("Memory", {one.gpu: memory_words(one) for one in estimates}),
        ],
    )
    sites = [site.site for site in prediction.sites]
    computed = "Estimates are computed from the step's operators and the GPU's data sheet."
    about = f"{computed} Data loading, communication between ranks and workspaces of libraries are not included."
    return [
        Explained(badge),
        *([Explained(table)] if estimates else []),
        *(note(f"{one.gpu}: {one.reason}") for one in estimates if one.reason),
        *([site_table(sites)] if sites else []),
        note(about if estimates else "`steptrace run --gpu H100 -- ...` also estimates its step time on a GPU."),
    ]


def _first(view: TraceView, predicted: Predicted | None) -> Html:
    """What to do first on one trace, or that there is nothing."""
    chosen = first_of_one(view, predicted)
    is_predicted = bool(chosen) and chosen[0].rule == PREDICTED_SYNCS
    more = 0 if is_predicted else len(view.trace.findings) - len(chosen)
    anchor = "predicted" if is_predicted else "findings"
    return render("page/first", items=chosen, more=more, anchor=anchor, nothing=nothing_to_advise([view]))


def _intro(
    title: str,
    traces: Sequence[TraceView],
    toc: Sequence[tuple[str, str]],
    warnings: Sequence[str],
    to_do: Html,
    result: str,
) -> Html:
    first, alone = traces[0], len(traces) == 1
    # Without steps there is no figure of one: such figures are left out, not "not measured".
    shown = [f for f in STEP_FIGURES if not f.name.endswith("_per_step") or any(view.trace.steps for view in traces)]
    shown = [f for f in shown if any(view.has_gpu or getattr(view.trace, f.name) is not None for view in traces)]
    figures = [(f.heading, fmt.with_unit(getattr(first.trace, f.name), f.unit)) for f in shown] if alone else []
    # What the headline has need not stand there twice.
    in_headline: tuple[CheckCode, ...] = ("gpu_work",)
    warned = [quality_warnings(v.trace.quality, without=() if v.has_gpu else in_headline) for v in traces]
    return render(
        "trace/intro",
        traces=traces,
        title=title,
        headline=result,
        unprofiled=alone and first.trace.unprofiled_step_ns is not None,
        goes=_where_it_goes(first.trace) if alone else "",
        caution=caution(first) if alone else (),
        lengths=lengths(first) if alone else (),
        device=device_of_traces(
            [view.trace.device_name for view in traces], has_gpu=any(view.has_gpu for view in traces)
        ),
        first=to_do,
        facts=[*(_facts(first) if alone else [("Device", _devices(traces)), ("Traces", str(len(traces)))]), *figures],
        terms=[f"StepFigures.{figure.name}" for figure in shown],
        toc=toc,
        warnings=warnings,
        care=[(view.title, texts) for view, texts in zip(traces, warned, strict=True) if texts],
    )


def _facts(view: TraceView) -> list[tuple[str, str | None]]:
    """What one trace is a record of, and how long its steps take; None is left out."""
    trace, coverage = view.trace, view.trace.quality.launch_coverage
    profiled, span = "Profiled step", "Span of the step"
    if len(trace.steps) > 1:
        profiled, span = "Profiled step, mean", "Span of a step, mean"
    apart = (
        view.step_ms is not None
        and view.span_ms is not None
        and fmt.duration_ms(view.span_ms) != fmt.duration_ms(view.step_ms)
    )
    return [
        ("Device", view.trace.device_name or (None if trace.device is None else f"GPU {trace.device}")),
        ("Rank", None if trace.rank is None else str(trace.rank)),
        ("Steps", str(len(trace.steps))),
        ("Unprofiled step, median", None if trace.unprofiled_step_ns is None else unprofiled(trace)),
        ("Unprofiled step, mean", fmt.duration_ns(trace.unprofiled_mean_ns) if trace.step_kinds else None),
        (profiled, fmt.duration_ms(view.step_ms) if trace.steps else None),
        (span, fmt.duration_ms(view.span_ms) if apart else None),
        ("GPU's span", fmt.duration_ns(trace.gpu.span_ns) if view.has_gpu and not trace.steps else None),
        ("GPU work with its launch", fmt.share(coverage) if coverage is not None and coverage < 1 else None),
    ]


def _where_it_goes(trace: TraceSummary) -> Html:
    """A bar of the step's parts, and each part with its share; nothing where they are not known."""
    parts = {} if trace.overview is None else trace.overview.parts_ns
    shares = {name: ns / sum(parts.values()) for name, ns in parts.items() if ns}
    return keyed_bar(
        [
            Piece(share, colour_of(name), f"{part_name(name)} {fmt.share(share)}{removable(trace, name, share)}")
            for name, share in shares.items()
        ]
    )


def _devices(traces: Sequence[TraceView]) -> str | None:
    """The names of all traces' GPUs, each with its number; None where there is no GPU or no name."""
    names = Counter(view.trace.device_name for view in traces if view.trace.device_name)
    return ", ".join(f"{count} × {name}" if count > 1 else name for name, count in names.items()) or None


def _sections(view: TraceView, prefix: str = "") -> tuple[list[tuple[str, str]], Html]:
    """The sections of one trace in the order of its subjects, with the contents.

    The findings stand behind the overview. What has nothing to show is named with its reason in a line at the end. With
    a prefix, of one of several traces, there are the main sections alone.
    """
    shown, body, absent = list[tuple[str, str]](), Html(""), dict[str, list[str]]()
    level = 3 if prefix else 2
    for subject in subjects_of(TraceSummary):
        if prefix and subject.folded:
            continue
        parts = parts_of(view, subject)
        if parts is None:
            absent.setdefault(why_absent(view, subject), []).append(subject.heading)
            continue
        id_ = prefix + subject.name
        body += section(id_, subject.heading, parts, level=level, folded=subject.folded)
        shown.append((id_, subject.heading))
        if "before_findings" in subject.traits and view.trace.findings:
            items, id_ = findings(view.trace.findings), f"{prefix}findings"
            body += section(id_, "Findings", [Explained(items)], level=level)
            shown.append((id_, "Findings"))
    reasons = "; ".join(f"{', '.join(names)} ({reason})" for reason, names in absent.items() if reason)
    rest = "Its other figures: run `steptrace analyze` on this trace alone." if prefix else ""
    last = " ".join(filter(None, [f"Not shown: {reasons}." if reasons else "", rest]))
    return shown, Html(body + note(last).html)


def rank_sections(ranks: Ranks, steps: int) -> list[tuple[str, str, Parts]]:
    """Id, heading and parts of each section on all ranks; sums are over so many steps, 0: not known."""
    sections: list[tuple[str, str, Parts]] = []
    if any(row.collectives for row in ranks.waits):
        sections.append(("waits", "Which rank the others wait for", _waits(ranks, steps)))
    if ranks.kernels:
        sections.append(("rank_kernels", "Kernels across ranks", [listing(ranks.kernels, most=15, steps=steps)]))
    return sections


def _waits(ranks: Ranks, steps: int) -> list[Explained]:
    of, reduced = ranks.collectives, ranks.all_reduce
    all_reduces = [] if reduced is None else [subheading("All-reduces per step, median over the ranks"), facts(reduced)]
    if not of.matched:
        return [note("Not measured: no collective ran on more than one of these traces."), *all_reduces]
    none = note("No straggler: no rank causes clearly more than its share of the waiting.")
    how = {
        "order": "by size and order, since the host's have no numbers",
        "time": "by time, since the traces do not number them",
    }
    by = "".join(f", {count} of them {how[name]}" for name, count in of.matched_by.items() if count and name in how)
    counted = f"{of.matched} of {of.total} collectives were matched across ranks{by}; the others are left out."
    return [
        none if ranks.straggler is None else facts(ranks.straggler, steps=steps),
        listing(ranks.waits, steps=steps),
        Explained(listing(of.by_name, steps=steps).html),
        note(counted),
        Explained("", definitions(["RankCollectives.matched"])),
        *all_reduces,
    ]
