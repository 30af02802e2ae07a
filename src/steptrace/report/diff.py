"""The page and the text of `steptrace diff`."""

from collections.abc import Sequence
from typing import Final

from steptrace import format as fmt
from steptrace.documents.base import Document, shown_columns, subjects_of
from steptrace.documents.diff import Diff, DiffSide, Pair, RowChange
from steptrace.documents.kernels import KernelName
from steptrace.documents.overview import TopOperator, part_name
from steptrace.documents.program import LineTime
from steptrace.documents.steps import STEP_FIGURES
from steptrace.documents.summary import TraceSummary
from steptrace.documents.syncs import SyncSite
from steptrace.report.page.markup import Html, breakable, definitions, page, render
from steptrace.report.page.parts import Explained, note, section, text_table

#: A larger multiple says less than the two figures.
_MOST_TIMES: Final = 20
#: How many rows of a topic the page lists, and the terminal; diff.json has all.
MOST_ROWS: Final = 10
#: Letters of a name; diff.json has all.
_LONGEST: Final = 100
_MOST_LINES: Final = 8
#: How many figures of a row stand side by side; diff.json has all.
_MOST_FIGURES: Final = 3
#: The topics that every diff has, with their rows' type.
TOPICS: Final[tuple[tuple[str, str, type[Document]], ...]] = (
    ("kernels", "Kernels", KernelName),
    ("operators", "Operators", TopOperator),
    ("syncs", "Syncs", SyncSite),
    ("lines", "Lines", LineTime),
)
#: A table: its heading, and its rows of a name, further words, and figures.
Topic = tuple[str, str, list[str], list[tuple[RowChange, list[str]]]]


def topics(diff: Diff) -> list[Topic]:
    """Every topic with its columns' headings and its rows in words; the tables that changed come last."""
    tables = []
    others = [(one.name, one.heading, one.kind) for one in subjects_of(TraceSummary) if one.name in diff.tables]
    for topic, heading, kind in (*TOPICS, *others):
        rows = diff.rows(topic)
        measured = {name for row in rows for name, pair in row.figures.items() if pair.a or pair.b}
        shown = [column for column in shown_columns(kind) if column.total and column.name in measured][:_MOST_FIGURES]
        cells = [(row, [_pair(row.figures.get(column.name), column.unit) for column in shown]) for row in rows]
        tables.append((topic, heading, [column.heading for column in shown], cells))
    return tables


def totals(diff: Diff) -> list[tuple[str, str]]:
    """The step, its parts, and the figures of a step, in words."""
    rows = [(f"{_unit(diff).capitalize()}, profiled", _pair(diff.step_ns, "ns"))]
    rows += [(part_name(name).capitalize(), _pair(pair, "ns")) for name, pair in diff.parts_ns.items()]
    rows += [(f.heading, _pair(diff.figures[f.name], f.unit)) for f in STEP_FIGURES]
    return [row for row in rows if row[1] != fmt.NOT_MEASURED]


def _unit(diff: Diff) -> str:
    return "step" if diff.a.steps and diff.b.steps else "trace"


def _pair(pair: Pair | None, unit: str | None) -> str:
    """ "6.49 ms → 3.10 ms (0.48×)"; without the multiple where it is above `_MOST_TIMES` or below its inverse."""
    if pair is None or pair.a is None or pair.b is None:
        return fmt.NOT_MEASURED
    a, b = (fmt.with_unit(value, unit) for value in (pair.a, pair.b))
    if a == b:
        return a
    times = pair.b / pair.a if pair.a else 0.0
    return f"{a} → {b}" + (f" ({fmt.ratio(times)})" if 1 / _MOST_TIMES <= times <= _MOST_TIMES else "")


def in_words(diff: Diff) -> str:
    """The diff as lines for a terminal: the cause, the step's parts, and of each topic the largest changes."""
    lines = [f"A: {_side(diff.a)}", f"B: {_side(diff.b)}", diff.cause, *(f"note: {note}" for note in diff.notes)]
    width = max(len(name) for name, _ in totals(diff))
    lines += [f"  {name:{width}}  {words}" for name, words in totals(diff)]
    for topic, heading, head, rows in topics(diff)[: len(TOPICS)]:
        if topic in diff.not_measured:
            lines.append(f"{heading.lower()}: not measured (needs {_needs(topic)} on both sides)")
        else:
            figures = f" ({', '.join(map(_inside, head))})" if head else ""
            lines.append(f"{heading.lower()}, per {_unit(diff)}: {fmt.plural(len(rows), 'change')}{figures}")
            lines += [f"  {'; '.join(filter(None, _named(row)))}: {', '.join(c)}" for row, c in rows[:_MOST_LINES]]
    return "\n".join(lines)


def _inside(heading: str) -> str:
    """A heading within a sentence: "calls", "GPU time"."""
    return heading if heading[:2].isupper() else f"{heading[:1].lower()}{heading[1:]}"


def _needs(topic: str) -> str:
    return "GPU work with its lines or Python frames" if topic == "lines" else "GPU work"


def _side(side: DiffSide) -> str:
    traces = side.paths[0] if len(side.paths) == 1 else f"{len(side.paths)} traces, {side.paths[0]} ..."
    return f"{traces} ({', '.join([fmt.plural(side.steps, 'step'), *side.devices])})"


def _named(row: RowChange) -> Sequence[str]:
    only = "" if row.in_a and row.in_b else "only in A" if row.in_a else "only in B"
    return fmt.clipped(row.name, _LONGEST), row.place or "", only, "renamed" if row.renamed_from else ""


def page_html(diff: Diff) -> str:
    """The whole page."""
    every = topics(diff)
    toc = [("totals", "In all"), *((topic, heading) for topic, heading, *_ in every)]
    terms = definitions(["RowChange.renamed_from", *(f"StepFigures.{f.name}" for f in STEP_FIGURES)])
    body = render("diff", diff=diff, toc=toc, sides=[("A", diff.a), ("B", diff.b)])
    in_all = text_table((f"Per {_unit(diff)}", "A → B"), totals(diff))
    body += section("totals", "In all", [Explained(in_all, terms)])
    for topic, heading, head, rows in every:
        parts = _topic(diff, topic, heading, head, rows)
        body += section(topic, heading, parts, folded=topic in diff.tables)
    return page("Diff – steptrace", body, toc)


def _topic(
    diff: Diff, topic: str, heading: str, head: Sequence[str], rows: Sequence[tuple[RowChange, list[str]]]
) -> list[Explained]:
    if topic in diff.not_measured:
        return [note(f"Not measured: needs {_needs(topic)} on both sides.")]
    if not rows:
        return [note("No change.")]
    heads = (f"{heading}, per {_unit(diff)}", *(f"{words}, A → B" for words in head))
    table = text_table(heads, [(_row_name(row), *cells) for row, cells in rows[:MOST_ROWS]])
    all_rows = f"The {MOST_ROWS} largest changes of {len(rows)}; diff.json lists all."
    return [*([note(all_rows)] if len(rows) > MOST_ROWS else []), Explained(table)]


def _row_name(row: RowChange) -> Html:
    """Its name, and where it differs from its twin on the other side."""
    html = Html('<span class="place">{}</span>').format(breakable(fmt.clipped(row.name, _LONGEST)))
    only = "" if row.in_a and row.in_b else f"only in {'A' if row.in_a else 'B'}"
    for text in filter(None, (row.place, only)):
        html += Html('<span class="note">{}</span>').format(breakable(text))
    if row.renamed_from:
        html += Html("<details><summary>under another name in A</summary>{}</details>").format(
            "; ".join(fmt.clipped(name, _LONGEST) for name in row.renamed_from)
        )
    return html
