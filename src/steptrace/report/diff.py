"""The page of `steptrace diff`: diff.json's content as one self-contained HTML file."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from steptrace import format as fmt
from steptrace.diff.words import nothing_differs, unknown
from steptrace.documents.step_figures import STEP_FIGURES
from steptrace.files import replace_atomically
from steptrace.report.draw import bars as draw
from steptrace.report.draw.bars import Part
from steptrace.report.draw.svg import InlineSvg
from steptrace.report.page.definitions import Definition, definitions
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
_TERMS = (
    Definition(
        "Slower, faster",
        "The quartiles of the time per step do not overlap between the sides, and the medians differ by at least 1 % "
        "and 1 µs. Steps of one window are not independent: this sorts differences and proves none.",
    ),
    Definition(
        "Same kernel",
        "By its name; else by its name without numbers in template arguments and without parameters; else by what it "
        "computes. Kernels alike on a level are added up, and the other side's name stands below.",
    ),
    Definition(
        "Operator",
        "Host time of its own is that not spent in operators it calls; GPU time is that of the work launched by it and "
        "by no operator inside. So both add up over operators.",
    ),
    Definition(
        "Line",
        "Function of the program behind GPU work: the first Python frame that is neither PyTorch's nor the "
        "pipeline's; of backward work that of the forward operator. Needs traces recorded with stacks.",
    ),
)


def write(found: dict[str, Any], out: Path) -> None:
    """Write the page of a diff.json's content."""
    text = page_html(found)
    replace_atomically(out, lambda partial: partial.write_text(text, encoding="utf-8"))


def page_html(found: dict[str, Any]) -> str:
    """The whole page."""
    toc = [("totals", "In all"), *((topic, heading) for topic, heading, _ in TOPICS)]
    body = render(
        "diff",
        diff=found,
        toc=toc,
        topics=[(topic, heading, _shown(found[topic], times)) for topic, heading, times in TOPICS],
        totals=[(words, "ns" if name.endswith("_ns") else None, found["totals"][name]) for name, words in _TOTALS]
        + [(figure.name, figure.unit, found["figures"][figure.key]) for figure in STEP_FIGURES],
        counts={topic: Counter(row["status"] for row in found[topic]) for topic, *_ in TOPICS},
        chart=_chart(found),
        headline=headline(found),
        most_rows=MOST_ROWS,
        unknown={topic: unknown(found, topic) for topic in found["not_measured"]},
        terms=[*_TERMS, *definitions(tuple(figure.key for figure in STEP_FIGURES))],
    )
    return page("Diff – steptrace", body, toc)


def _shown(rows: Sequence[Mapping[str, Any]], times: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """The times that both sides have."""
    return tuple((key, words) for key, words in times if all(row[key] is not None for row in rows))


def headline(found: dict[str, Any]) -> str:
    """What changed, in one sentence made from the data."""
    unit = found["unit"]
    if not any(found[topic] for topic, *_ in TOPICS):
        sentence = nothing_differs(found)
        return f"{sentence[0].upper()}{sentence[1:]}."
    step, syncs = found["totals"]["step_ns"], found["sync_totals"]
    clauses = [f"A profiled {unit} takes {fmt.duration_ns(step['a'])} in A and {fmt.duration_ns(step['b'])} in B"]
    kernels = found["kernels"]
    if kernels:
        first = kernels[0]
        more = first["device_ns"]["delta"] > 0
        size = fmt.duration_ns(abs(first["device_ns"]["delta"]))
        clauses.append(f"the largest change on the GPU is {size} {'more' if more else 'less'} in {first['short_name']}")
    if None not in syncs.values() and syncs["a"] != syncs["b"]:
        blocked = [fmt.duration_ns(syncs[side]["blocked_ns"]) for side in ("a", "b")]
        clauses.append(
            f"{syncs['a']['count']} syncs blocked the host for {blocked[0]}, {syncs['b']['count']} for {blocked[1]}"
        )
    return "; ".join(clauses) + "."


def _chart(found: Mapping[str, Any]) -> InlineSvg | None:
    """Where a unit's time goes on the GPU: a bar a side."""
    totals = [(part, found["totals"][f"{part}_ns"]) for part in _PARTS]
    known = [(part, total) for part, total in totals if total is not None]
    if not known:
        return None
    rows = [(side.upper(), [Part(part, total[side] / fmt.NS_PER_MS) for part, total in known]) for side in ("a", "b")]
    return draw.stacked_bars(rows, f"ms per profiled {found['unit']}, medians")
