"""The sections of a trace's page that show more than their subject's table.

Each is a function of the trace that returns the parts of the section, or None if there is nothing to show. A subject
that is a list of rows needs no function: its table follows from its columns.
"""

import gzip
from base64 import b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from steptrace import format as fmt
from steptrace.documents.base import Document, shown_columns
from steptrace.documents.launches import Distribution
from steptrace.documents.overview import IDLE_CAUSES, part_name
from steptrace.documents.subject import Absence, Subject
from steptrace.documents.summary import TraceSummary
from steptrace.findings.headline import step_lengths_of
from steptrace.findings.rule import per_in_words
from steptrace.findings.window import window_of
from steptrace.report.charts.cells import pieces_of
from steptrace.report.charts.lanes import lanes
from steptrace.report.charts.palette import colour_of
from steptrace.report.charts.strip import Bar, parted_bars
from steptrace.report.page.markup import Html, definitions, inline_code
from steptrace.report.page.rows import facts, listing, named_facts, site_table
from steptrace.report.page.section import Explained, Parts, colour_keys, folded, key_of_lanes, note, subheading
from steptrace.report.page.table import Figure, figures_table
from steptrace.report.trace.registry import section_for, section_of
from steptrace.report.trace.view import TraceView
from steptrace.words.codes import EXPECTED_BY, GPU_SPAN, absence_text
from steptrace.words.headline import span_text
from steptrace.words.notes import text_of
from steptrace.words.pictures import BUSIEST_STREAMS, DOWNLOAD, DOWNLOAD_OF_TRACE, LANES, STEPS_DRAWN, download_note

#: Most bars of steps in the overview; more would be narrower than a pixel, and make the page too large to send.
_MOST_BARS: Final = 320
#: How many operators stand in the overview.
_MOST_OPERATORS: Final = 6
#: The least share that is shown of a number format, and of matrix products in an unknown one.
_SMALLEST_SHARE: Final = 0.005
#: What a page calls classes of work on the critical path, if it uses another word.
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
#: A smaller part of a step is not seen in its bar.
_SMALLEST_PART: Final = 0.0005
#: The host's time that is in no part of the step.
_OTHER: Final = "other"
_SEVERAL: Final = 2
#: The number of rows of a long table that are visible at once; the other rows are folded.
_OPEN: Final = 5


def parts_of(view: TraceView, subject: Subject) -> Parts | None:
    """The parts of the section on a subject; None if there is nothing to show."""
    section = section_for(subject.name)
    if section is not None:
        return section(view)
    rows = rows_of(view.trace, subject)
    return [listing(rows, most=20, steps=view.steps)] if rows else None


def rows_of(trace: TraceSummary, subject: Subject) -> Sequence[Document]:
    """The rows of a subject; a subject of single figures has one row."""
    value = getattr(trace, subject.name)
    if value is None:
        return ()
    return value if isinstance(value, tuple) else (value,)


def why_absent(view: TraceView, subject: Subject) -> str:
    """Why there is nothing to show of a subject, in words; empty where that is no loss."""
    trace = view.trace
    return absence_text(absence_of(trace, subject), trace.device_name)


def absence_of(trace: TraceSummary, subject: Subject) -> Absence | None:
    """The code of why there is nothing to show of a subject; None where that is no loss."""
    if subject.needs_gpu and not trace.gpu_measured:
        return "gpu_records_lost" if trace.quality.lost else "no_gpu_work"
    return trace.absent.get(subject.name, subject.absent)


def _folded(
    view: TraceView,
    title: str,
    rows: Sequence[Document],
    names: Sequence[str] = (),
    most: int = 12,
    words: Mapping[str, str] | None = None,
) -> Parts:
    """A table that its title unfolds; nothing without rows. `words` replace some names."""
    return [folded(title, listing(rows, names, most=most, words=words, steps=view.steps))] if rows else []


def _listed(view: TraceView, rows: Sequence[Document], noun: str, words: Mapping[str, str] | None = None) -> Parts:
    """A table of the first rows, and the others folded under their number; there must be a row."""
    first = rows[:_OPEN]
    rest = rows[_OPEN:]
    more = _folded(view, fmt.plural(len(rest), noun), rest, most=25, words=words)
    return [listing(first, words=words, steps=view.steps), *more]


@section_of("overview")
def overview_parts(view: TraceView) -> Parts:
    """The number formats that the trace computes in, and the operators that take most of the time."""
    overview = view.trace.overview
    formats = _precision(view.trace)
    format_terms = ("Precision.kernel_ns", "Precision.tensor_core_ns") if formats else ()
    by_step = step_strip(view)
    terms = definitions(["Overview.parts_ns", *format_terms])
    figures = Explained(named_facts(formats) if formats else "", terms)
    if overview is None or not overview.operators:
        return [by_step, figures]
    on_device = any(row.device_self_ns for row in overview.operators)
    columns = ("name", "calls", *(["device_self_ns"] if on_device else []), "host_self_ns", "share")
    return [
        by_step,
        figures,
        subheading("Top operators"),
        listing(overview.operators[:_MOST_OPERATORS], columns, steps=overview.steps),
    ]


def step_strip(view: TraceView) -> Explained:
    """Each step as a bar of its parts; nothing of a single step."""
    steps = () if view.trace.overview is None else view.trace.overview.by_step
    if len(steps) < _SEVERAL or not any(sum(step.known_ns.values()) for step in steps):
        return Explained("")
    lengths = [sum(step.known_ns.values()) for step in steps]
    ends = f"{fmt.duration_ns(min(lengths))} to {fmt.duration_ns(max(lengths))}"
    # Of many steps some are drawn: the longest ones, so that no outlier is lost.
    of = -(-len(steps) // _MOST_BARS)
    groups = [range(first, min(first + of, len(steps))) for first in range(0, len(steps), of)]
    drawn = [steps[max(group, key=lengths.__getitem__)] for group in groups]
    bars = [Bar(str(step.index), pieces_of(step.known_ns)) for step in drawn]
    picture = parted_bars(bars, f"{len(steps)} steps of {ends}, each with its parts", what="Step")
    parts = dict.fromkeys(name for step in steps for name, ns in step.known_ns.items() if ns)
    keys = colour_keys({name: part_name(name) for name in parts}, colour_of)
    which = "" if of == 1 else note(STEPS_DRAWN.format(of=of, all=len(steps))).html
    html = Html('{}<div class="picture">{}</div>{}').format(which, picture, keys)
    return Explained(html)


def _precision(trace: TraceSummary) -> list[tuple[str, str]]:
    """Shares of the kernel time and of matrix products by number format, with what each is called."""
    precision = trace.precision
    if precision is None:
        return []
    shown = {name: share for name, share in precision.shares.items() if share >= _SMALLEST_SHARE}
    figures = [(f"Kernel time, {part_name(name)}", fmt.share(share)) for name, share in shown.items()]
    if precision.tf32_share:
        figures.append(("32-bit kernel time in TF32", fmt.share(precision.tf32_share)))
    if precision.tensor_core_share is None:
        return figures
    unknown = precision.tensor_core_unknown_share or 0
    rest = f", {fmt.share(unknown)} unknown" if unknown >= _SMALLEST_SHARE else ""
    return [*figures, ("Matrix products on tensor cores", f"{fmt.share(precision.tensor_core_share)}{rest}")]


@section_of("gpu")
def gpu(view: TraceView) -> Parts | None:
    """The parts of the GPU's time step by step, or over its span if the trace marks no steps."""
    trace = view.trace
    if not view.has_gpu:
        return None
    if trace.steps:
        return [listing(trace.steps, _STEP_COLUMNS, most=60)]
    return [facts(trace.gpu)]


@section_of("timeline")
def timeline(view: TraceView) -> Parts | None:
    """The picture of one step."""
    picture = view.trace.timeline
    steps = len(view.trace.steps)
    if picture is None:
        return None
    length = fmt.duration_ns(picture.span_ns)
    if picture.step is None:
        caption = f"The trace from its first event to its last, {length}: it marks no steps."
    else:
        which = "the only profiled one" if steps == 1 else f"the median of {steps} steps"
        caption = f"ProfilerStep#{picture.step}, {which}: {length}."
        span = step_lengths_of(view.trace).span
        caption = caption if span is None else f"{caption} {span_text(span)}"
    streams = sum(lane.kind == "stream" for lane in picture.lanes)
    if streams < len(view.trace.idle.by_stream):
        caption = f"{caption} {BUSIEST_STREAMS.format(shown=streams, all=len(view.trace.idle.by_stream))}"
    if any(lane.kind == "gpu" for lane in picture.lanes):
        caption = f"{caption} {LANES}"
    return [Explained(lanes(picture, caption, key_of_lanes(picture, visible_shares(view.trace))))]


def visible_shares(trace: TraceSummary) -> dict[str, float]:
    """The parts of the step that a picture of it shows, each with its share of the step; empty if no part is known."""
    parts = {} if trace.overview is None else trace.overview.known_ns
    shares = {name: ns / sum(parts.values()) for name, ns in parts.items() if ns}
    shares = {name: share for name, share in shares.items() if share >= _SMALLEST_PART}
    return {} if set(shares) == {_OTHER} else shares


def top_picture(view: TraceView, excerpt: bytes | None = None) -> Html:
    """The picture at the top of a page of one trace, with the same step as a small trace to download.

    It is empty if the trace has no picture.
    """
    shown = timeline(view)
    if shown is None:
        return Html("")
    download = "" if excerpt is None else _download(view, excerpt)
    return Html("").join([*(part.html for part in shown), download])


def _download(view: TraceView, excerpt: bytes) -> Html:
    """A link that holds a small gzipped trace, since a page is one file and loads nothing."""
    content = _EXCERPT.decode(gzip.decompress(excerpt)).steptraceExcerpt
    name = f"{Path(view.trace.path).name.removesuffix('.gz').removesuffix('.json')}-step.json.gz"
    link = Html(
        '<p class="note download"><a download="{}" href="data:application/gzip;base64,{}">{}</a> <span>{}</span></p>'
    )
    shown = view.trace.timeline
    of_step = shown is None or shown.step is not None
    note = download_note(len(excerpt), content.events, content.of_events, of_step=of_step)
    text = DOWNLOAD if of_step else DOWNLOAD_OF_TRACE
    return link.format(name, b64encode(excerpt).decode(), text, inline_code(note))


class _Kept(msgspec.Struct):
    """How many events an excerpt holds, and how many the step has."""

    events: int
    of_events: int


class _Excerpt(msgspec.Struct):
    steptraceExcerpt: _Kept  # noqa: N815 - as the file has it


_EXCERPT: Final = msgspec.json.Decoder(_Excerpt)


@section_of("idle")
def idle(view: TraceView) -> Parts | None:
    """The causes of idle time within the steps, or within the GPU's span, and the longest gaps."""
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
    not_counted = ""
    if outside:
        are = "is" if outside == 1 else "are"
        not_counted = f" {fmt.plural(outside, 'sync')} outside the steps {are} not counted."
    if not trace.syncs.sites:
        none = f"The host never waits for the GPU{' inside a step' if trace.steps else ''}."
        return [note(none + not_counted)]
    head = note(sync_cost(trace) + not_counted)
    return [head, site_table(trace.syncs.sites, steps=view.steps)]


def sync_cost(trace: TraceSummary) -> str:
    """What all syncs save at most, and why the GPU's idle time after them is another figure."""
    syncs = trace.syncs
    window = window_of(trace)
    number = window.per_step(syncs.count or 0)
    blocked = fmt.duration_ns(window.per_step(syncs.blocked_ns or 0))
    block = "block" if number != 1 else "blocks"
    pronoun = "them" if number != 1 else "it"
    counted = f"{fmt.plural(number, 'sync')} {per_in_words(window.steps)}"
    sentence = f"{counted} {block} the host for {blocked}"
    if syncs.ceiling_ns is None:
        return f"{sentence}."

    def of_step(ns: float) -> str:
        return f"{fmt.duration_ns(ns)} ({fmt.share(window.share(ns))})"

    most = window.per_step(syncs.ceiling_ns)
    idle = window.parts.get("idle_sync", 0.0)
    whole = "a step" if window.steps else GPU_SPAN
    sentence += f"; without {pronoun} {whole} is at most {of_step(most)} shorter."
    if idle <= most:
        return sentence
    rest = "the rest is the time that the host needs to launch the next work, with or without a sync"
    return f"{sentence} The GPU is idle for {of_step(idle)} after {pronoun}: {rest}."


@section_of("input")
def waiting_for_data(view: TraceView) -> Parts | None:
    """How long the steps waited for data."""
    waits = view.trace.input
    if waits.wait_ns is None:
        return None
    of_label = (
        "The program uses no PyTorch DataLoader: these are the times of the loop's label `data`, without `copy data`."
    )
    return [
        facts(waits, steps=view.steps),
        *([note(of_label)] if waits.source == "label" else []),
        *(_folded(view, "Step by step", waits.by_step, most=20) if len(waits.by_step) > 1 else []),
    ]


@section_of("kernels")
def kernels(view: TraceView) -> Parts | None:
    """The kernels by name, and the classes of kernels that ran at the same time."""
    trace = view.trace
    if not trace.kernels:
        return None
    return [
        *_listed(view, trace.kernels, "more kernel"),
        *_folded(view, "Concurrent kernel classes", trace.kernel_types),
    ]


@section_of("collectives")
def communication(view: TraceView) -> Parts | None:
    """The rank's collectives, and its all-reduces against the expected time."""
    rows = view.trace.collectives
    reduced = view.trace.all_reduce
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
        if reduced.expected_ns is not None and reduced.expected_by is not None:
            expected = fmt.duration_ns(reduced.expected_ns / view.steps)
            notes.append(note(f"Expected of such messages: {expected}, {EXPECTED_BY[reduced.expected_by]}."))
    read = view.trace.ranks_read
    world_size = view.trace.world_size or 1
    if read < world_size and any(row.wait_ns is None for row in rows.by_name):
        notes.append(note(f"{fmt.capitalised(text_of('ranks_not_read', {'read': read, 'world_size': world_size}))}."))
    return [*notes, listing(rows.by_name, steps=view.steps)]


@section_of("program")
def program(view: TraceView) -> Parts | None:
    """GPU time by line; and folded, host and GPU time by function with the outermost callers first."""
    times = view.trace.program
    if not times.by_line and not times.functions:
        return None
    rows = "line" if any(row.code for row in times.by_line or ()) else "function"
    return [
        *(_listed(view, times.by_line, f"more {rows}") if times.by_line else []),
        *_folded(view, "Host and GPU time by function and module, callers included", times.functions, most=50),
    ]


@section_of("critical_path")
def critical_path(view: TraceView) -> Parts | None:
    """The critical path by class."""
    path = view.trace.critical_path
    steps = view.trace.steps
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
    """Times of launches: in the call, on the GPU, and between both; by call, folded."""
    launched = view.trace.launches
    if launched is None or not launched.count:
        return None
    measured = {
        "Host, in the call": launched.host_ns,
        "GPU, its work": launched.device_ns,
        "Delay": launched.delay_ns,
        "Of that queueing": launched.queueing_ns,
        "Of that dependency": launched.dependency_ns,
        "Of that launch latency": launched.latency_ns,
    }
    times = {name: row for name, row in measured.items() if row is not None}
    figures = [
        Figure(column.heading, {name: column.value_in(row) for name, row in times.items()}, "ns")
        for column in shown_columns(Distribution)
    ]
    return [
        facts(launched, steps=view.steps),
        Explained(figures_table("Per launch", {name: name for name in times}, figures)),
        *_folded(view, "By call", launched.by_call),
    ]


@section_of("quality")
def quality(view: TraceView) -> Parts | None:
    """The checks of the trace, the failed ones first."""
    wrong = [check for check in view.trace.quality.checks if check.wrong]
    good = [check for check in view.trace.quality.checks if not check.wrong]
    if not wrong and not good:
        return None
    title = f"{'The other' if wrong else 'All'} {fmt.plural(len(good), 'check')} passed"
    return [*([listing(wrong)] if wrong else []), *_folded(view, title, good, ("check", "of"), most=50)]
