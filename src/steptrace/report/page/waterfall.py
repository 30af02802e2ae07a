"""A waterfall with its names and figures: from one step to another, part by part."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from steptrace import format as fmt
from steptrace.report.charts.palette import colour_of
from steptrace.report.charts.waterfall import WaterfallChange, waterfall
from steptrace.report.page.markup import Html, breakable, render

#: A part that changes by less than this share of the largest change has no row of its own.
_LEAST: Final = 0.05
#: The sum of all other parts has a row if it is at least this share of the largest change.
_LEAST_REST: Final = 0.01
#: The name in `charts.palette` of the difference that the parts do not explain.
_REST: Final = "unexplained"


@dataclass(frozen=True)
class PartChange:
    """A part of a step: its key, its name on the page, and how much longer it is in ns; negative if it is shorter.

    `range_` is the range of that figure if it is an estimate; the tooltip says it.
    """

    part: str
    name: str
    ns: float
    range_: tuple[float, float] | None = None

    @property
    def tooltip(self) -> str:
        """Its name, by how much it is longer, and the interval of that difference."""
        text = f"{self.name}: {fmt.signed_ns(self.ns)}"
        return text if self.range_ is None else f"{text} ({' to '.join(map(fmt.signed_ns, self.range_))})"


def waterfall_figure(
    title: str, start: tuple[str, float], changes: Sequence[PartChange], end: tuple[str, float]
) -> Html:
    """The waterfall with a row for each change; parts that become shorter come first.

    Args:
        title: what it shows.
        start: name of the step that it begins with, and its time in ns.
        changes: the parts that make the difference. Small ones, and what all leave over, are one row.
        end: name and time of the step that it ends with.
    """
    (first, first_ns), (last, last_ns) = start, end
    whole = last_ns - first_ns
    largest = max(abs(whole), *(abs(change.ns) for change in changes), 1.0)
    shown = [change for change in sorted(changes, key=lambda change: change.ns) if abs(change.ns) >= _LEAST * largest]
    rest = whole - sum(change.ns for change in shown)
    if abs(rest) >= _LEAST_REST * largest:
        shown.append(PartChange(_REST, "the rest", rest))
    elif shown:
        shown[-1] = replace(shown[-1], ns=shown[-1].ns + rest)
    else:
        last_ns = first_ns
    bars = [WaterfallChange(change.ns, colour_of(change.part), change.tooltip) for change in shown]
    words = tuple(f"{name}: {fmt.duration_ns(ns)}" for name, ns in (start, end))
    drawn = waterfall(first_ns, bars, last_ns, (words[0], words[1]))
    names = [breakable(first), *(change.name for change in shown), breakable(last)]
    figures = [fmt.duration_ns(first_ns), *(fmt.signed_ns(change.ns) for change in shown), fmt.duration_ns(last_ns)]
    rows = list(zip(names, drawn.rows, figures, strict=True))
    return render("page/waterfall", title=title, rows=rows, low=fmt.duration_ns(drawn.low) if drawn.low else "")
