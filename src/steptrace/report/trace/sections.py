"""Sections of a trace's page that have more to show than the table of their rows."""

from steptrace import format as fmt
from steptrace.documents.summary import TraceSummary
from steptrace.documents.syncs import SyncSite
from steptrace.findings.window import window_of
from steptrace.limits import NOISE_FLOOR
from steptrace.report.page.markup import Html, place, rank_sites, render, unplaced
from steptrace.report.page.table import Explained, facts, listing
from steptrace.report.trace.charts import strips
from steptrace.report.trace.model import TraceView

#: So many sites without a finding are named.
_MOST_CHEAP = 5
_PER_STEP = ("count_per_step", "blocked_ns_per_step", "exposed_idle_ns_per_step")
_IN_ALL = ("count", "blocked_ns", "exposed_idle_ns")
_OF_SYNCS = ("per_step", *_IN_ALL, "caused_idle_ns", "outside_steps")


def queues(view: TraceView) -> Explained:
    """The busiest streams over time, and every stream."""
    trace = view.trace
    table = listing(trace.queues, by="activities")
    if trace.series is None:
        return table
    # The series is rounded to be drawn: its maximum need not be the table's.
    longest = {row.stream: row.max for row in trace.queues if row.device == trace.device}
    rows = [
        (f"stream {row.stream}", fmt.count(longest.get(row.stream, max(row.max))), row) for row in trace.series.queues
    ]
    chart = strips("Queue length", rows, trace.series.edges)
    caption = "The busiest streams of one GPU, each scaled to its own maximum."
    return Explained(
        render("page/charts", figures=[(chart, "Queue length over time", caption)], beside=table.html), table.meanings
    )


def syncs(view: TraceView, prefix: str) -> Explained:
    """The counts, and each site with what it costs."""
    trace = view.trace
    head = facts(trace.syncs, [name for name in _OF_SYNCS if name == "count" or getattr(trace.syncs, name)])
    if not trace.syncs.sites:
        where = " inside a step" if trace.steps else ""
        return Explained(Html(head.html + render("page/note", text=f"The host never waits for the GPU{where}.")), ())
    figures = _PER_STEP if trace.syncs.per_step is not None else _IN_ALL
    names = ("file", "op", "kind", "label", *figures)
    table = listing(rank_sites(trace.syncs.sites), names, anchor=f"{prefix}site-")
    cheap = [row for row in _cheap(trace) if row[2] < NOISE_FLOOR]
    sentence = ""
    if cheap:
        named = [
            f"`{at}` saves at most {fmt.duration_ns(ns)} ({fmt.share(share)})" for at, ns, share in cheap[:_MOST_CHEAP]
        ]
        more = [f"{len(cheap) - _MOST_CHEAP} more"] if len(cheap) > _MOST_CHEAP else []
        sentence = f"Sites worth under 1 % of a step have no finding: {'; '.join([*named, *more])}."
    return Explained(
        Html(head.html + table.html + (render("page/note", text=sentence) if sentence else "")), table.meanings
    )


def _cheap(trace: TraceSummary) -> list[tuple[str, float, float]]:
    """The sites on which there is no finding, since they cost too little: place, what a step saves at most, share."""
    window = window_of(trace)
    named = [(item.source.file, item.source.line) for item in trace.findings if item.source is not None]
    if not window.steps or any(item.rule == "syncs_together" for item in trace.findings):
        return []

    def saves(site: SyncSite) -> float:
        return window.each(site.ceiling_ns or 0)

    return [
        (place(site) or unplaced(site), saves(site), window.share(saves(site)))
        for site in rank_sites(trace.syncs.sites)
        if site.ceiling_ns is not None and (site.file, site.line) not in named
    ]
