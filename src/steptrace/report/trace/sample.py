"""Which of many traces a page shows; the page states the rule."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Final

from steptrace.documents.ranks import Ranks
from steptrace.report.trace.view import TraceView

#: More traces than this are not shown side by side.
MOST_TRACES: Final = 16


def sample(traces: Sequence[TraceView], ranks: Ranks | None) -> list[int]:
    """The places of the traces that a page shows, the most telling first; all of them where they are few.

    The straggler, or without one the rank of the dearest finding; the first trace; the other ranks that findings name,
    the ones that wait most and that others wait for most; the ones with the longest and the shortest step; then evenly
    spaced ones.
    """
    if len(traces) <= MOST_TRACES:
        return list(range(len(traces)))
    place_of = {view.trace.rank if view.trace.rank is not None else i: i for i, view in enumerate(traces)}
    telling = [place_of[rank] for rank in _telling_ranks(ranks) if rank in place_of]
    spaced = (round(i * (len(traces) - 1) / (MOST_TRACES - 1)) for i in range(MOST_TRACES))
    chosen = dict.fromkeys([*telling[:1], 0, *telling[1:], *_longest_and_shortest(traces)])
    first = list(chosen)[: MOST_TRACES // 2]
    return list(dict.fromkeys([*first, *spaced]))[:MOST_TRACES]


def _telling_ranks(ranks: Ranks | None) -> Iterator[int]:
    """The straggler, the ranks that wait most and least, and those that findings name."""
    if ranks is None:
        return
    if ranks.straggler is not None and ranks.straggler.rank is not None:
        yield ranks.straggler.rank
    named = (item.source.rank for item in (*ranks.findings, *ranks.in_single_ranks) if item.source is not None)
    by_wait = sorted((row for row in ranks.waits if row.wait_ns is not None), key=lambda row: -(row.wait_ns or 0))
    by_cause = sorted((row for row in ranks.waits if row.caused_ns), key=lambda row: -(row.caused_ns or 0))
    waiting: Iterable[int | None] = [row.rank for row in (*by_cause[:1], *by_wait[:1])]
    for pair in zip_longest(named, waiting):
        yield from (rank for rank in pair if rank is not None)


def _longest_and_shortest(traces: Sequence[TraceView]) -> list[int]:
    lengths = [(view.step_ms, place) for place, view in enumerate(traces) if view.step_ms is not None]
    return [max(lengths)[1], min(lengths)[1]] if lengths else []
