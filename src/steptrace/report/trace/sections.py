"""The sections of a trace's page, by the names of its subjects in summary.json.

A subject whose value is a list of rows needs none here: its table follows from its columns. The others have a function
of the trace and a `Spot` that gives the parts of the section, or None if there is nothing to show.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from steptrace import format as fmt
from steptrace.documents.base import Document
from steptrace.documents.column import Subject
from steptrace.documents.copies import Copy
from steptrace.documents.summary import TraceSummary
from steptrace.documents.syncs import SyncSite
from steptrace.findings.window import window_of
from steptrace.limits import NOISE_FLOOR
from steptrace.report.draw.bars import IDLE_CAUSES, PART_NAMES, Part, stacked_bars
from steptrace.report.draw.flame import flame
from steptrace.report.draw.timeline import timeline_figure
from steptrace.report.page.definitions import definitions
from steptrace.report.page.markup import place, render, unplaced
from steptrace.report.page.overview import overview_parts
from steptrace.report.page.table import Explained, facts, listing, site_table
from steptrace.report.trace import charts
from steptrace.report.trace.memory import memory
from steptrace.report.trace.model import TraceView
from steptrace.report.trace.overview import overview
from steptrace.report.trace.parts import Parts, chart, folded, note

#: Causes of idle time in a table.
_CAUSES: Final = {cause: PART_NAMES[cause] for cause in IDLE_CAUSES}
#: Likely causes of slow operators in a table.
_SLOW: Final = {
    "multiple of 8": "sizes no multiple of 8",
    "strided": "strided inputs",
    "tiny": "too little work a call",
}
#: So many sites without a finding are named.
_MOST_CHEAP: Final = 5
#: So many kernels stand open; the others fold.
_KERNELS: Final = 5
#: Tooltips in a picture of one of several traces: what keeps the page small.
_FEW: Final = 120
#: Of one of several traces a flame graph's boxes below this share are left out, for the same reason.
_SMALLEST_OF_MANY: Final = 0.01
#: A copy of fewer bytes on average takes the time to begin it: its rate says nothing of the link.
_WORTH_A_RATE: Final = 2**16


@dataclass(frozen=True)
class Spot:
    """Where a section stands: alone on the page or as one of several traces, whose ids then have a prefix."""

    alone: bool
    prefix: str


def section(view: TraceView, subject: Subject, spot: Spot) -> Parts | None:
    """What a trace says of a subject; None if that is nothing."""
    if subject.name in SECTIONS:
        return SECTIONS[subject.name](view, spot)
    rows: tuple[Document, ...] | None = getattr(view.trace, subject.name)
    return [listing(rows, most=20)] if rows else None


def gpu(view: TraceView, _: Spot) -> Parts | None:
    """Where the GPU's time went, step by step, or over its span where the trace marks no steps."""
    trace = view.trace
    if not view.has_gpu:
        return None
    steps = [row for row in trace.temporal if row.step is not None]
    if steps:
        return [chart(charts.profiled_steps(trace.steps), "Step by step"), listing(steps, most=60)]
    names = ["span_ns", "activities", "compute_ns", "exposed_comm_ns", "exposed_memory_ns", "idle_ns", "overlap_pct"]
    if trace.gpu.activities == 1:  # idle time lies between activities
        names.remove("idle_ns")
    span = chart(charts.span_chart([view]), "The GPU's span", "From its first to its last work.")
    return [span, facts(trace.gpu, [name for name in names if getattr(trace.gpu, name) is not None])]


def timeline(view: TraceView, spot: Spot) -> Parts | None:
    """The picture of one step."""
    picture = view.trace.timeline
    if picture is None:
        return None
    svg = timeline_figure(picture) if spot.alone else timeline_figure(picture, most=_FEW)
    length = fmt.duration_ns(picture.span_ns)
    if picture.step is None:
        sentence = f"The trace from its first event to its last, {length}: it marks no steps."
    else:
        which = (
            "the only profiled one" if len(view.trace.steps) == 1 else f"the median of {len(view.trace.steps)} steps"
        )
        sentence = f"ProfilerStep#{picture.step}, {which}: {length}."
    html = render("trace/timeline", text=sentence, svg=svg, left_out=picture.left_out)
    terms = definitions(["Timeline.step", "Lane.events", "Lane.kind", "Idle.by_cause"])
    return [Explained(html, terms)]


def idle(view: TraceView, _: Spot) -> Parts | None:
    """Why the GPU was idle within the steps, or within its span, and where the longest gaps are."""
    trace = view.trace
    if trace.gpu.activities < 2:
        return None
    causes = [part for part in overview_parts(trace.overview) if part.label.startswith("idle_") and part.ms]
    svg = stacked_bars([("idle per step" if trace.steps else "idle", causes)], "ms") if causes else None
    streams = sorted(trace.idle.by_stream, key=lambda row: -row.host_wait_ns)
    return [
        Explained(chart(svg, "By cause").html, definitions(["Idle.by_cause"])),
        *([] if causes else [note("The GPU has no idle gaps.")]),
        *folded("Idle before each operator's work", trace.idle.ended_by, words=_CAUSES),
        *folded("The longest gaps between GPU work", trace.idle.longest, words=_CAUSES),
        *folded("Idle by stream, from the first to the last GPU work", streams),
    ]


def syncs(view: TraceView, spot: Spot) -> Parts | None:
    """The counts, and each site with what it costs."""
    trace = view.trace
    if not (trace.gpu.activities or trace.syncs.count):
        return None
    outside = trace.syncs.outside_steps
    not_counted = f" {fmt.plural(outside, 'sync')} outside the steps {'is' if outside == 1 else 'are'} not counted."
    if not trace.syncs.sites:
        none = f"The host never waits for the GPU{' inside a step' if trace.steps else ''}."
        return [note(none + not_counted * bool(outside))]
    head = note(sync_cost(trace) + not_counted * bool(outside))
    table = site_table(trace.syncs.sites, f"{spot.prefix}site-", per_step=trace.syncs.per_step is not None)
    cheap = [row for row in _cheap(trace) if row[2] < NOISE_FLOOR]
    if not cheap:
        return [head, table]
    named = [
        f"`{at}` saves {f'at most {fmt.duration_ns(ns)} ({fmt.share(part)} of a step)' if ns else 'nothing'}"
        for at, ns, part in cheap[:_MOST_CHEAP]
    ]
    named += [f"{len(cheap) - _MOST_CHEAP} more"] if len(cheap) > _MOST_CHEAP else []
    return [
        head,
        table,
        note(f"Sites worth under {fmt.setting(NOISE_FLOOR)} of a step are not listed as findings: {'; '.join(named)}."),
    ]


def sync_cost(trace: TraceSummary) -> str:
    """What all syncs save at most, and why the GPU's idle time after them is another figure."""
    syncs, window = trace.syncs, window_of(trace)
    number, blocked = window.per_step(syncs.count), fmt.duration_ns(window.per_step(syncs.blocked_ns))
    block, them = ("sync", "it") if number == 1 else ("syncs", "them")
    verb = "blocks" if number == 1 else "block"
    sentence = f"{fmt.count(number)} {block} {window.per} {verb} the host for {blocked}"
    if syncs.ceiling_ns is None:
        return f"{sentence}."

    def of_step(ns: float) -> str:
        return f"{fmt.duration_ns(ns)} ({fmt.share(window.share(ns))})"

    most, idle = window.per_step(syncs.ceiling_ns), window.per_step(syncs.caused_idle_ns or 0)
    whole = "a step" if window.steps else "the trace"
    sentence += f"; without {them} {whole} is at most {of_step(most)} shorter."
    if idle <= most:
        return sentence
    rest = "the rest of that time the host needs to launch the next work, with or without a sync"
    return f"{sentence} The GPU is idle for {of_step(idle)} after {them}: {rest}."


def _cheap(trace: TraceSummary) -> list[tuple[str, float, float]]:
    """The sites on which there is no finding, since they cost too little: place, what a step saves at most, share."""
    window = window_of(trace)
    named = [(item.source.file, item.source.line) for item in trace.findings if item.source is not None]
    if not window.steps or any(item.rule == "syncs_together" for item in trace.findings):
        return []

    def saves(site: SyncSite) -> float:
        return window.per_step(site.ceiling_ns or 0)

    return [
        (place(site) or unplaced(site), saves(site), window.share(saves(site)))
        for site in sorted(trace.syncs.sites, key=saves, reverse=True)
        if site.ceiling_ns is not None and (site.file, site.line) not in named
    ]


def waiting_for_data(view: TraceView, _: Spot) -> Parts | None:
    """How long the steps waited for data."""
    waits = view.trace.input
    if waits.wait_ns is None:
        return None
    names = [
        name
        for name in ("verdict", "share", "waits", "wait_ns", "gpu_idle_wait_ns")
        if getattr(waits, name) is not None
    ]
    own = "The program uses no PyTorch DataLoader: these are the times of the loop's label `data`, without `copy data`."
    return [
        facts(waits, names),
        *([note(own)] if waits.source == "section" else []),
        *(folded("Step by step", waits.by_step, most=20) if len(waits.by_step) > 1 else []),
    ]


def kernels(view: TraceView, _: Spot) -> Parts | None:
    """Every kernel by name, and which classes ran at once."""
    trace = view.trace
    if not trace.kernels:
        return None
    first, rest = trace.kernels[:_KERNELS], trace.kernels[_KERNELS:]
    more = folded(fmt.plural(len(rest), "more kernel"), rest, most=25)
    return [listing(first), *more, *folded("Classes of kernels at once", trace.kernel_types)]


def communication(view: TraceView, _: Spot) -> Parts | None:
    """What the rank communicated."""
    rows, reduced = view.trace.collectives, view.trace.all_reduce
    if rows is None or not rows.count:
        return None
    notes = []
    if reduced is not None and reduced.count_per_step is not None:
        what = "All-reduces, carried out by the host" if reduced.source == "host" else "All-reduces"
        size = "" if reduced.bytes_per_step is None else f" with {fmt.size_bytes(reduced.bytes_per_step)}"
        took = (
            f"{fmt.duration_ns(reduced.measured_ns_per_step)}, exposed: {fmt.duration_ns(reduced.exposed_ns_per_step)}"
        )
        notes = [note(f"{what}: {fmt.count(reduced.count_per_step)} a step{size}, under way for {took}.")]
    return [*notes, listing(rows.by_name), *folded("By step", rows.by_step)]


def program(view: TraceView, spot: Spot) -> Parts | None:
    """GPU and host time by place in the program."""
    of, smallest = view.trace.program, 0.0 if spot.alone else _SMALLEST_OF_MANY
    device, host = flame(of.device_flame, "GPU time", smallest), flame(of.host_flame, "host time", smallest)
    if device is None and host is None:
        return None
    caption = "Only threads that do training work."
    host_html = render("page/flame", svg=host, title="Host time by call", caption=caption) if host else ""
    lines = any(row.code for row in of.by_line or ())
    no_lines = "By line: not measured, because the trace holds no Python frames."
    return [
        *folded(f"GPU time by {'line' if lines else 'function, at the line of its def'}", of.by_line or ()),
        *([note(no_lines)] if device and not of.by_line else []),
        Explained(render("page/flame", svg=device, title="GPU time by call", caption="") if device else ""),
        Explained(
            render("page/folded", title="Host time by call", body=host_html) if host else "",
            definitions(["Flame.boxes"]),
        ),
    ]


def critical_path(view: TraceView, _: Spot) -> Parts | None:
    """The critical path by class."""
    path, steps = view.trace.critical_path, view.trace.steps
    if path is None:
        return None
    span = path.span_ns / fmt.NS_PER_MS
    parts = [Part(f"path_{row.class_}", row.share * span) for row in path.classes if row.share]
    unit = "ms, mean over the steps" if len(steps) > 1 else "ms"
    title = "step" if steps else "trace, host and GPU"
    words = {row.class_: PART_NAMES[f"path_{row.class_}"] for row in path.classes}
    length = fmt.duration_ns(path.span_ns)
    over = (
        (f"Means over {path.steps} steps; one takes {length}." if path.steps > 1 else f"One step of {length}.")
        if steps
        else f"All of the trace, {length}."
    )
    return [
        chart(stacked_bars([(title, parts)], unit), "On the critical path", over),
        listing([row for row in path.classes if row.path_ns], words=words),
    ]


def launches(view: TraceView, _: Spot) -> Parts | None:
    """How work was launched."""
    of = view.trace.launches
    if of is None or not of.count:
        return None
    each = {"Host, in the call": of.host_ns, "GPU, its work": of.device_ns, "Delay": of.delay_ns,
            "Of that queueing": of.queueing_ns, "Of that dependency": of.dependency_ns,
            "Of that launch latency": of.latency_ns}  # fmt: skip
    measured = {name: row for name, row in each.items() if row is not None}
    names = ("count", "activities", "unlinked", "short_kernels", "slow_launches", "excess_delays")
    return [
        facts(of, [name for name in names if getattr(of, name)]),
        listing(list(measured.values()), labels=("Per launch", list(measured))),
        *folded("By call", of.by_call),
        *folded("By operator", of.by_op),
    ]


def queues(view: TraceView, _: Spot) -> Parts | None:
    """The busiest streams over time, and every stream."""
    trace = view.trace
    if not trace.queues:
        return None
    # The series is rounded to be drawn: its maximum need not be the table's.
    longest = {row.stream: row.max for row in trace.queues if row.device == trace.device}
    series = () if trace.series is None else trace.series.queues
    rows = [(f"stream {row.stream}", fmt.count(longest.get(row.stream, max(row.max))), row) for row in series]
    svg = charts.strips("Queue length", rows, trace.series.edges) if trace.series is not None else None
    caption = "The busiest streams of one GPU, each scaled to its own maximum."
    streams = sorted(trace.queues, key=lambda row: -row.activities)
    return [chart(svg, "Queue length over time", caption), listing(streams)]


def copies(view: TraceView, _: Spot) -> Parts | None:
    """The rate of each kind of copy, over time and in all."""
    trace = view.trace
    if not trace.copies:
        return None
    # The series is rounded to be drawn: rounded once more, its maximum would differ from the table's.
    highest = {
        row.kind: row.max_bytes_per_second for row in trace.copies if row.device == trace.device and _has_rate(row)
    }
    series = [] if trace.series is None else [row for row in trace.series.copies if row.kind in highest]
    rows = [(row.kind, fmt.bandwidth(highest.get(row.kind, max(row.max))), row) for row in series]
    svg = charts.strips("Memory bandwidth", rows, trace.series.edges) if trace.series is not None else None
    rates = ("mean_bytes_per_second", "median_bytes_per_second", "max_bytes_per_second")
    table = [row if _has_rate(row) else replace(row, **dict.fromkeys(rates)) for row in trace.copies]
    return [chart(svg, "Bandwidth over time", "Each kind scaled to its own maximum."), listing(table)]


def _has_rate(row: Copy) -> bool:
    """Whether the copies are so large on average that their rate says something of the link."""
    return row.bytes is None or row.bytes >= _WORTH_A_RATE * (row.count - row.unsized)


def quality(view: TraceView, _: Spot) -> Parts | None:
    """What was checked, the failed checks first."""
    wrong = [check for check in view.trace.quality.checks if check.found]
    good = [check for check in view.trace.quality.checks if not check.found]
    if not wrong and not good:
        return None
    title = f"{'The other' if wrong else 'All'} {fmt.plural(len(good), 'check')} passed"
    return [*([listing(wrong)] if wrong else []), *folded(title, good, ("check", "of"), most=50)]


SECTIONS: Final[dict[str, Callable[[TraceView, Spot], Parts | None]]] = {
    "overview": lambda view, spot: overview(view, alone=spot.alone),
    "idle": idle,
    "syncs": syncs,
    "input": waiting_for_data,
    "kernels": kernels,
    "collectives": communication,
    "program": program,
    "gpu": gpu,
    "timeline": timeline,
    "critical_path": critical_path,
    "launches": launches,
    "queues": queues,
    "copies": copies,
    "roofline": lambda view, _: [listing(rows, most=20, words=_SLOW)] if (rows := view.trace.roofline) else None,
    "memory": lambda view, _: memory(view),
    "quality": quality,
}
