"""The page of `steptrace diff`: a diff as one self-contained HTML file."""

from collections import Counter
from collections.abc import Sequence

from steptrace import format as fmt
from steptrace.diff.words import nothing_differs, unknown
from steptrace.documents.diff import Change, Diff
from steptrace.documents.step_figures import STEP_FIGURES
from steptrace.report.draw import bars as draw
from steptrace.report.draw.bars import Part
from steptrace.report.draw.svg import InlineSvg
from steptrace.report.page.markup import page, render

#: How many rows of a topic the page lists; diff.json has all.
MOST_ROWS = 40

#: id, heading, what a row is, and the times it is shown by: key, heading.
TOPICS: tuple[tuple[str, str, tuple[tuple[str, str], ...]], ...] = (
    ("kernels", "Kernels", (("device_ns", "GPU time"),)),
    ("operators", "Operators", (("host_self_ns", "Host time of its own"), ("device_ns", "GPU time"))),
    ("syncs", "Syncs", (("blocked_ns", "Host blocked"),)),
    ("lines", "Lines", (("device_ns", "GPU time"),)),
)
_PARTS = ("compute", "exposed_comm", "exposed_memory", "idle")
_TOTALS = (
    ("step_ns", "Step, profiled"),
    ("busy_ns", "GPU busy"),
    ("compute_ns", "Compute"),
    ("exposed_comm_ns", "Exposed communication"),
    ("exposed_memory_ns", "Exposed memory"),
    ("idle_ns", "GPU idle"),
    ("blocked_ns", "Host blocked in syncs"),
    ("operators", "Operator calls"),
    ("kernels", "GPU activities"),
    ("syncs", "Syncs"),
)


def page_html(found: Diff) -> str:
    """The whole page."""
    toc = [("totals", "In all"), *((topic, heading) for topic, heading, _ in TOPICS)]
    body = render(
        "diff",
        diff=found,
        toc=toc,
        topics=[(topic, heading, _shown(found.rows(topic), times)) for topic, heading, times in TOPICS],
        totals=[(words, "ns" if name.endswith("_ns") else None, found.totals[name]) for name, words in _TOTALS]
        + [(figure.name, figure.unit, found.figures[figure.key]) for figure in STEP_FIGURES],
        counts={topic: Counter(row.status for row in found.rows(topic)) for topic, *_ in TOPICS},
        chart=_chart(found),
        headline=headline(found),
        most_rows=MOST_ROWS,
        unknown={topic: unknown(found, topic) for topic in found.not_measured},
        figures=STEP_FIGURES,
    )
    return page("Diff – steptrace", body, toc)


def _shown(rows: Sequence[Change], times: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """The times that both sides have."""
    return tuple((key, words) for key, words in times if all(getattr(row, key) is not None for row in rows))


def headline(found: Diff) -> str:
    """What changed, in one sentence made from the data."""
    unit = found.unit
    if found.is_empty:
        sentence = nothing_differs(found)
        return f"{sentence[0].upper()}{sentence[1:]}."
    step, a, b = found.totals["step_ns"], found.sync_totals.a, found.sync_totals.b
    clauses = []
    if step is not None:
        clauses.append(f"A profiled {unit} takes {fmt.duration_ns(step.a)} in A and {fmt.duration_ns(step.b)} in B")
    if found.kernels and (time := found.kernels[0].device_ns) is not None:
        size, way = fmt.duration_ns(abs(time.delta)), "more" if time.delta > 0 else "less"
        clauses.append(f"the largest change on the GPU is {size} {way} in {found.kernels[0].short_name}")
    if a is not None and b is not None and a != b:
        blocked = [fmt.duration_ns(side.blocked_ns) for side in (a, b)]
        clauses.append(f"{a.count} syncs blocked the host for {blocked[0]}, {b.count} for {blocked[1]}")
    return "; ".join(clauses) + "."


def _chart(found: Diff) -> InlineSvg | None:
    """Where a unit's time goes on the GPU: a bar a side."""
    known = [(part, total) for part in _PARTS if (total := found.totals[f"{part}_ns"]) is not None]
    if not known:
        return None
    rows = [
        ("A", [Part(part, total.a / fmt.NS_PER_MS) for part, total in known]),
        ("B", [Part(part, total.b / fmt.NS_PER_MS) for part, total in known]),
    ]
    return draw.stacked_bars(rows, f"ms per profiled {found.unit}, medians")
