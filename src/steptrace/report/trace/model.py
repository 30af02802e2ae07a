"""What a topic of a trace's page is."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from steptrace.documents.summary import Ranks, TraceSummary
from steptrace.report.draw.svg import InlineSvg
from steptrace.report.page.definitions import Definition
from steptrace.report.trace.view import TraceView

Charts = Mapping[str, InlineSvg | None]


#: Says of a trace why something is not to be shown, as HTML without a full stop; None where it is.
Reason = Callable[[TraceSummary], str | None]


def unless(present: Callable[[TraceSummary], object], reason: str) -> Reason:
    """The reason for every trace that `present` is false of."""
    return lambda trace: None if present(trace) else reason


without_gpu = unless(lambda t: t.gpu.activities, "the trace holds no GPU activity")


@dataclass(frozen=True)
class Topic:
    """One section of a trace's page, drawn by the template `topics/<id>.html.j2`.

    The template gets the `TraceSummary` as `t`, `has_gpu`, `charts` from here by name, whatever `data` returns, and
    `level`, that of its heading; the page prints the heading above it and `terms` below it.

    Attributes:
        id: names the template and, with a prefix, the place in the page.
        heading: what stands in the table of contents.
        terms: the definitions of its figures.
        charts: draws its figures, for a heading of that level: 2 where the page shows this trace alone.
        data: what else the template takes.
        most: how many rows its table lists, as `most` in the template; summary.json has more.
        unmeasured: why a trace cannot tell; it is not shown then.
        nothing: why there is nothing to show of a trace that can.
    """

    id: str
    heading: str
    terms: tuple[Definition, ...]
    charts: Callable[[TraceView, int], Charts] = field(default=lambda _, __: {})
    data: Callable[[TraceView], Mapping[str, Any]] = field(default=lambda _: {})
    most: int | None = None
    unmeasured: Reason = field(default=lambda _: None)
    nothing: Reason = field(default=lambda _: None)


@dataclass(frozen=True)
class RankTopic:
    """One section on several ranks together, drawn by `topics/<id>.html.j2`.

    The template gets `ranks`, that key of summary.json, and the rest as that of a `Topic`. `shown` says whether there
    is anything to show.
    """

    id: str
    heading: str
    terms: tuple[Definition, ...]
    charts: Callable[[Ranks], Charts] = field(default=lambda _: {})
    shown: Callable[[Ranks], bool] = field(default=lambda _: True)
