"""The sections of a trace's page that show more than their subject's table.

A subject whose value is a list of rows needs none here: its table follows from its columns. The others have a function
of the trace that gives the parts of the section, or None if there is nothing to show.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from steptrace import format as fmt
from steptrace.documents.base import Document, shown_columns
from steptrace.documents.launches import Distribution
from steptrace.documents.overview import IDLE_CAUSES, part_name
from steptrace.documents.subject import Subject
from steptrace.documents.summary import TraceSummary
from steptrace.findings.rule import window_of
from steptrace.report.draw import timeline_figure
from steptrace.report.page.markup import definitions
from steptrace.report.page.parts import (
    Explained,
    Figure,
    Parts,
    facts,
    figures_table,
    folded,
    listing,
    named_facts,
    note,
    site_table,
    subheading,
)
from steptrace.report.trace import absence
from steptrace.report.trace.registry import section_for, section_of
from steptrace.report.trace.words import TraceView

#: How many operators stand in the overview.
_MOST_OPERATORS: Final = 6
#: A number format with less of the kernel time is left out, and so is what is unknown of the matrix products.
_SMALLEST_SHARE: Final = 0.005
#: Classes of work on the critical path, where a page calls them something else.
_PATH_CLASSES: Final = {
    "loader": "data loader",
    "sync": "sync overhead",
    "launch": "launch latency",
    "queue": "queueing",
    "comm": "communication",
}
#: The columns of the table of steps, in order.
_STEP_COLUMNS: Final = (
    *("index", "length_ns", "dur_ns", "host_dur_ns", "busy_ns", "compute_ns", "exposed_comm_ns", "exposed_memory_ns"),
    "idle_ns",
)
#: So many rows of a long table stand open; the others fold.
_OPEN: Final = 5


def parts_of(view: TraceView, subject: Subject) -> Parts | None:
    """What a trace says of a subject; None if that is nothing."""
    section = section_for(subject.name)
    if section is not None:
        return section(view)
    rows = rows_of(view.trace, subject)
    return [listing(rows, most=20, steps=view.steps)] if rows else None


def rows_of(trace: TraceSummary, subject: Subject) -> Sequence[Document]:
    """The rows of a subject as a page shows them; figures that are no list are one row."""
    value = getattr(trace, subject.name)
    return value if isinstance(value, tuple) else () if value is None else (value,)


def why_absent(view: TraceView, subject: Subject) -> str:
    """Why there is nothing to show of a subject, in words; empty where that is no loss."""
    return absence.in_words(absence.why_absent(view.trace, subject), view.trace)


def _folded(
    view: TraceView,
    title: str,
    rows: Sequence[Document],
    names: Sequence[str] = (),
    most: int = 12,
    words: Mapping[str, str] | None = None,
) -> Parts:
    """A table behind its title; nothing without rows. `words` stand for some names."""
    return [folded(title, listing(rows, names, most=most, words=words, steps=view.steps))] if rows else []


def _listed(view: TraceView, rows: Sequence[Document], others: str, words: Mapping[str, str] | None = None) -> Parts:
    """A table of the first rows, and the others behind their number; at least one row."""
    first, rest = rows[:_OPEN], rows[_OPEN:]
    more = _folded(view, fmt.plural(len(rest), others), rest, most=25, words=words)
    return [listing(first, words=words, steps=view.steps), *more]


@section_of("overview")
def overview(view: TraceView) -> Parts:
    """In which number formats the trace computes, and the operators that take most of the time."""
    of, formats = view.trace.overview, _precision(view.trace)
    of_formats = ("Precision.kernel_ns", "Precision.tensor_core_ns") if formats else ()
    terms = definitions(["Overview.parts_ns", *of_formats])
    figures = Explained(named_facts(formats) if formats else "", terms)
    if of is None or not of.operators:
        return [figures]
    on_device = any(row.device_self_ns for row in of.operators)
    columns = ("name", "calls", *(["device_self_ns"] if on_device else []), "host_self_ns", "share")
    return [figures, subheading("Top operators"), listing(of.operators[:_MOST_OPERATORS], columns, steps=of.steps)]


def _precision(trace: TraceSummary) -> list[tuple[str, str]]:
    of = trace.precision
    if of is None:
        return []
    shown = {name: share for name, share in of.shares.items() if share >= _SMALLEST_SHARE}
    figures = [(f"Kernel time, {part_name(name)}", fmt.share(share)) for name, share in shown.items()]
    if of.tf32_share:
        figures.append(("32-bit kernel time in TF32", fmt.share(of.tf32_share)))
    if of.tensor_core_share is None:
        return figures
    unknown = of.tensor_core_unknown_share or 0
    note = f", {fmt.share(unknown)} unknown" if unknown >= _SMALLEST_SHARE else ""
    return [*figures, ("Matrix products on tensor cores", f"{fmt.share(of.tensor_core_share)}{note}")]


@section_of("gpu")
def gpu(view: TraceView) -> Parts | None:
    """Where the GPU's time went, step by step, or over its span where the trace marks no steps."""
    trace = view.trace
    if not view.has_gpu:
        return None
    if trace.steps:
        return [listing(trace.steps, _STEP_COLUMNS, most=60)]
    return [facts(trace.gpu)]


@section_of("timeline")
def timeline(view: TraceView) -> Parts | None:
    """The picture of one step."""
    picture, steps = view.trace.timeline, len(view.trace.steps)
    if picture is None:
        return None
    which, length = "the only profiled one" if steps == 1 else f"the median of {steps} steps", picture.span_ns
    step = f"ProfilerStep#{picture.step}, {which}; its span is {fmt.duration_ns(length)}."
    whole = f"The trace from its first event to its last, {fmt.duration_ns(length)}: it marks no steps."
    return [
        note(whole if picture.step is None else step),
        Explained(timeline_figure(picture), definitions(["Timeline.step", "Lane.parts", "IdleGap.cause"])),
        note("Names and single events: open the trace, or the step that `--excerpt` writes, in ui.perfetto.dev."),
    ]


@section_of("idle")
def idle(view: TraceView) -> Parts | None:
    """Why the GPU was idle within the steps, or within its span, and where the longest gaps are."""
    trace = view.trace
    if not view.has_gpu or trace.gpu.activities < 2:
        return None
    causes = Explained("", definitions(["IdleGap.cause"]))
    if not trace.idle.ended_by:
        return [note("The GPU has no idle gaps."), causes]
    streams = sorted(trace.idle.by_stream, key=lambda row: -row.host_wait_ns)
    return [
        *_listed(view, trace.idle.ended_by, "more row", words=IDLE_CAUSES),
        *_folded(view, "The longest gaps between GPU work", trace.idle.longest, words=IDLE_CAUSES),
        *_folded(view, "By stream, from the first to the last GPU work", streams),
        causes,
    ]


@section_of("syncs")
def syncs(view: TraceView) -> Parts | None:
    """The counts, and each site with what it costs."""
    trace = view.trace
    if not (trace.used_gpu or trace.syncs.count):
        return None
    if trace.syncs.count is None:
        return None
    outside = trace.syncs.outside_steps or 0
    not_counted = (
        f" {fmt.plural(outside, 'sync')} outside the steps {'is' if outside == 1 else 'are'} in no figure per step."
    )
    if not trace.syncs.sites:
        none = f"The host never waits for the GPU{' inside a step' if trace.steps else ''}."
        return [note(none + not_counted * bool(outside))]
    head = note(sync_cost(trace) + not_counted * bool(outside))
    return [head, site_table(trace.syncs.sites, steps=view.steps)]


def sync_cost(trace: TraceSummary) -> str:
    """What all syncs save at most, and why the GPU's idle time after them is another figure."""
    syncs, window = trace.syncs, window_of(trace)
    number, blocked = window.per_step(syncs.count or 0), fmt.duration_ns(window.per_step(syncs.blocked_ns or 0))
    block, them = ("sync", "it") if number == 1 else ("syncs", "them")
    verb = "blocks" if number == 1 else "block"
    sentence = f"{fmt.count(number)} {block} {window.per} {verb} the host for {blocked}"
    if syncs.ceiling_ns is None:
        return f"{sentence}."

    def of_step(ns: float) -> str:
        return f"{fmt.duration_ns(ns)} ({fmt.share(window.share(ns))})"

    most, idle = window.per_step(syncs.ceiling_ns), window.parts.get("idle_sync", 0.0)
    whole = "a step" if window.steps else "the trace"
    sentence += f"; without {them} {whole} is at most {of_step(most)} shorter."
    if idle <= most:
        return sentence
    rest = "the rest is the time that the host needs to launch the next work, with or without a sync"
    return f"{sentence} The GPU is idle for {of_step(idle)} after {them}: {rest}."


@section_of("input")
def waiting_for_data(view: TraceView) -> Parts | None:
    """How long the steps waited for data."""
    waits = view.trace.input
    if waits.wait_ns is None:
        return None
    own = "The program uses no PyTorch DataLoader: these are the times of the loop's label `data`, without `copy data`."
    return [
        facts(waits, steps=view.steps),
        *([note(own)] if waits.source == "label" else []),
        *(_folded(view, "Step by step", waits.by_step, most=20) if len(waits.by_step) > 1 else []),
    ]


@section_of("kernels")
def kernels(view: TraceView) -> Parts | None:
    """Every kernel by name, and which classes ran at once."""
    trace = view.trace
    if not trace.kernels:
        return None
    return [
        *_listed(view, trace.kernels, "more kernel"),
        *_folded(view, "Kernel classes that overlap in time", trace.kernel_types),
    ]


@section_of("collectives")
def communication(view: TraceView) -> Parts | None:
    """What the rank communicated."""
    rows, reduced = view.trace.collectives, view.trace.all_reduce
    if rows is None or not rows.count:
        return None
    notes = []
    if reduced is not None and view.steps:
        where = " by the host" if reduced.source == "host" else ""
        size = "" if reduced.bytes is None else f", {fmt.size_bytes(reduced.bytes / view.steps)}"
        exposed = (
            "" if reduced.exposed_ns is None else f", {fmt.duration_ns(reduced.exposed_ns / view.steps)} of it exposed"
        )
        if reduced.exposed_wait_ns is not None:
            waited = fmt.duration_ns(reduced.exposed_wait_ns / view.steps)
            exposed += f" ({waited} of that waiting for other ranks)"
        count = fmt.plural(round(reduced.count / view.steps, 2), "all-reduce")
        under_way = fmt.duration_ns(reduced.measured_ns / view.steps)
        notes = [note(f"{count}{where} per step{size}: {under_way} under way{exposed}.")]
    return [*notes, listing(rows.by_name, steps=view.steps)]


@section_of("program")
def program(view: TraceView) -> Parts | None:
    """GPU time by line; and host and GPU time by function, whose outermost callers come first, on demand."""
    of = view.trace.program
    if not of.by_line and not of.functions:
        return None
    lines = "line" if any(row.code for row in of.by_line or ()) else "function"
    return [
        *(_listed(view, of.by_line, f"more {lines}") if of.by_line else []),
        *_folded(view, "Host and GPU time by function and module, callers included", of.functions, most=50),
    ]


@section_of("critical_path")
def critical_path(view: TraceView) -> Parts | None:
    """The critical path by class."""
    path, steps = view.trace.critical_path, view.trace.steps
    if path is None:
        return None
    length = fmt.duration_ns(path.span_ns)
    if not steps:
        over = f"All of the trace, {length}."
    else:
        over = f"Means over {path.steps} steps; a span" if path.steps > 1 else "One step; its span"
        over += f" is {length}."
    return [note(over), listing([row for row in path.classes if row.path_ns], words=_PATH_CLASSES)]


@section_of("launches")
def launches(view: TraceView) -> Parts | None:
    """How work was launched."""
    of = view.trace.launches
    if of is None or not of.count:
        return None
    each = {"Host, in the call": of.host_ns, "GPU, its work": of.device_ns, "Delay": of.delay_ns,
            "Of that queueing": of.queueing_ns, "Of that dependency": of.dependency_ns,
            "Of that launch latency": of.latency_ns}  # fmt: skip
    times = {name: row for name, row in each.items() if row is not None}
    figures = [
        Figure(column.heading, {name: column.of(row) for name, row in times.items()}, "ns")
        for column in shown_columns(Distribution)
    ]
    return [
        facts(of, steps=view.steps),
        Explained(figures_table("Per launch", {name: name for name in times}, figures)),
        *_folded(view, "By call", of.by_call),
    ]


@section_of("quality")
def quality(view: TraceView) -> Parts | None:
    """What was checked, the failed checks first."""
    wrong = [check for check in view.trace.quality.checks if check.wrong]
    good = [check for check in view.trace.quality.checks if not check.wrong]
    if not wrong and not good:
        return None
    title = f"{'The other' if wrong else 'All'} {fmt.plural(len(good), 'check')} passed"
    return [*([listing(wrong)] if wrong else []), *_folded(view, title, good, ("check", "of"), most=50)]
