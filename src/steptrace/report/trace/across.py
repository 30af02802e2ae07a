"""Pictures of several traces: the parts of all side by side, with smallest and largest, and each step of each."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Final

from steptrace import format as fmt
from steptrace.documents.overview import Overview, part_name
from steptrace.documents.ranks import Ranks
from steptrace.report.charts.cells import Piece, pieces_of
from steptrace.report.charts.heat_map import heat_map
from steptrace.report.charts.lanes import lanes
from steptrace.report.charts.palette import colour_of
from steptrace.report.charts.strip import Bar, parted_bars
from steptrace.report.page.markup import Html
from steptrace.report.page.section import Explained, Parts, colour_keys, key_of_lanes, note
from steptrace.report.page.table import Figure, figures_table
from steptrace.report.trace.view import TraceView
from steptrace.words.pictures import PARTS_OF_TRACES, STEPS_OF_RANKS, lanes_of_ranks

#: More columns of steps than this are not seen.
_MOST_STEPS: Final = 60
#: Cells that a page has room for.
_MOST_CELLS: Final = 400
_SEVERAL: Final = 2
#: A part with a smaller share of the time of every trace is left out of the key and of the table.
_LEAST_SHARE: Final = 0.005

#: The time of each part of a step in each trace, in ns.
_OfTraces = dict[str, dict[str, float]]


def parts_picture(views: Sequence[TraceView]) -> Html:
    """Each trace as a bar of the parts of its step; nothing where no trace has parts of a GPU or of the loop."""
    of_traces = _parts(views)
    if not of_traces:
        return Html("")
    bars = [Bar(_short(name), _named(name, pieces_of(parts))) for name, parts in of_traces.items()]
    words = ", ".join(f"{bar.name} {fmt.duration_ns(bar.size)}" for bar in bars)
    keys = colour_keys({name: part_name(name) for name in _shown(of_traces)}, colour_of)
    return Html('<div class="picture">{}</div>{}').format(parted_bars(bars, words), keys)


def lanes_picture(ranks: Ranks | None, above: Sequence[TraceView] = ()) -> Html:
    """One step of the ranks, a lane each; nothing where they share none.

    Args:
        ranks: what they say together.
        above: the traces whose parts a picture right above shows, with their key.
    """
    timeline = None if ranks is None else ranks.timeline
    if timeline is None:
        return Html("")
    return Html(lanes(timeline, lanes_of_ranks(timeline), key_of_lanes(timeline, _shown(_parts(above)))))


def _named(trace: str, pieces: Sequence[Piece]) -> list[Piece]:
    """The pieces with the trace's name in their tooltips: of many bars only some have their name below them."""
    return [replace(piece, words=f"{_short(trace)}: {piece.words}") for piece in pieces if piece.size]


def parts_table(views: Sequence[TraceView]) -> Parts:
    """For each part the traces with the smallest and the largest share of the step, and the median of all traces."""
    of_traces = _parts(views)
    if len(of_traces) < _SEVERAL:
        return []
    shares = {
        part: {trace: parts.get(part, 0.0) / sum(parts.values()) for trace, parts in of_traces.items()}
        for part in _shown(of_traces)
    }
    least = {part: min(by_trace, key=by_trace.__getitem__) for part, by_trace in shares.items()}
    most = {part: max(by_trace, key=by_trace.__getitem__) for part, by_trace in shares.items()}
    figures = [
        Figure("Smallest", {part: shares[part][least[part]] for part in shares}, "share"),
        Figure("In trace", least),
        Figure("Median", {part: median(by_trace.values()) for part, by_trace in shares.items()}, "share"),
        Figure("Largest", {part: shares[part][most[part]] for part in shares}, "share"),
        Figure("In trace", most),
    ]
    rows = {part: part_name(part) for part in shares}
    return [note(PARTS_OF_TRACES), Explained(figures_table("Part of the step", rows, figures))]


def steps_picture(views: Sequence[TraceView]) -> Parts:
    """How long each step of each trace took, as colours; nothing without two traces that have the same two steps."""
    lengths = {view.title: {step.index: step.length_ns or step.dur_ns for step in view.trace.steps} for view in views}
    steps = sorted({index for by_step in lengths.values() for index in by_step})
    steps = steps[: min(_MOST_STEPS, _MOST_CELLS // len(views))]
    shared = [index for index in steps if sum(index in by_step for by_step in lengths.values()) >= _SEVERAL]
    if not shared:
        return []
    values = [[by_step.get(index) for index in steps] for by_step in lengths.values()]
    words = [["" if ns is None else fmt.duration_ns(ns) for ns in row] for row in values]
    measured = [ns for row in values for ns in row if ns is not None]
    ends = f"{fmt.duration_ns(min(measured))} to {fmt.duration_ns(max(measured))}"
    alt = f"{len(lengths)} traces, {len(steps)} steps, {ends}"
    drawn = heat_map(
        [_short(name) for name in lengths], [str(index) for index in steps], values, words, alt, fill="grey"
    )
    return [note(STEPS_OF_RANKS), Explained(Html('<div class="picture">{}</div>').format(drawn))]


def _parts(views: Sequence[TraceView]) -> _OfTraces:
    """The traces with parts of one kind: of a GPU if any trace has them, otherwise of the loop."""
    with_parts = [(view.title, view.trace.overview) for view in views if view.trace.overview is not None]
    kinds = {overview.kind for _, overview in with_parts}
    kind = "gpu" if "gpu" in kinds else "host"
    by_title = {title: _with_waiting(overview) for title, overview in with_parts if overview.kind == kind}
    return {title: parts for title, parts in by_title.items() if sum(parts.values())}


def _with_waiting(overview: Overview) -> dict[str, float]:
    """The parts of a step, its exposed communication divided into waiting for other ranks and the rest, if known."""
    parts = dict(overview.of_step)
    if overview.exposed_wait_ns is None or not parts.get("exposed_comm"):
        return parts
    waiting = min(overview.exposed_wait_ns / (overview.steps or 1), parts["exposed_comm"])
    divided: dict[str, float] = {}
    for name, ns in parts.items():
        if name == "exposed_comm":
            divided |= {"exposed_wait": waiting, "exposed_transfer": ns - waiting}
        else:
            divided[name] = ns
    return divided


def _shown(of_traces: _OfTraces) -> list[str]:
    """The parts that some trace spends a visible share of its step in."""
    names = dict.fromkeys(name for parts in of_traces.values() for name in parts)
    return [
        name
        for name in names
        if any(parts.get(name, 0.0) >= _LEAST_SHARE * sum(parts.values()) for parts in of_traces.values())
    ]


def _short(title: str) -> str:
    return fmt.clipped(title.removesuffix(".gz").removesuffix(".json"), 18)
