"""The page and the text of `steptrace diff`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from steptrace import format as fmt
from steptrace.documents.base import shown_columns
from steptrace.documents.diff import TOPICS, Diff, DiffSide, MeasuredSide, Needs, Pair, RowChange
from steptrace.documents.overview import part_name
from steptrace.documents.steps import STEP_FIGURES
from steptrace.documents.subject import subjects_of
from steptrace.documents.summary import TraceSummary
from steptrace.findings.estimated import step_words
from steptrace.report.page.markup import Html, breakable, definitions, page, render
from steptrace.report.page.parts import Explained, note, section, text_table
from steptrace.report.study.syncs import changed

#: A larger multiple says less than the two figures.
_MOST_TIMES: Final = 20
#: How many rows of a topic the page lists, and the terminal; diff.json has all.
MOST_ROWS: Final = 10
#: Letters of a name; diff.json has all.
_LONGEST: Final = 100
_MOST_LINES: Final = 8
#: How many figures of a row stand side by side; diff.json has all.
_MOST_FIGURES: Final = 3
_BOTH: Final = 2
#: A table: its name, its heading, the headings of its columns, and its rows, each with its figures in words.
TopicTable = tuple[str, str, list[str], list[tuple[RowChange, list[str]]]]
#: What both sides must have, in words.
_NEEDS: Final[Mapping[Needs, str]] = {
    "gpu_work": "GPU work",
    "gpu_work_with_lines": "GPU work with its lines or Python frames",
    "profiled_steps": "profiled steps",
}


def topics(diff: Diff) -> list[TopicTable]:
    """Every topic with its columns' headings and its rows in words; the tables that changed come last."""
    tables = []
    others = [(one.name, one.heading, one.kind) for one in subjects_of(TraceSummary) if one.name in diff.tables]
    always = [(one.name, one.heading, one.kind) for one in TOPICS]
    for topic, heading, kind in (*always, *others):
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


def measured_rows(diff: Diff) -> list[tuple[str, str]]:
    """What was measured without the profiler, and what was predicted and estimated, in words; empty of traces alone.

    What neither side has is left out.
    """
    if diff.measured is None:
        return []
    sides = diff.measured.a, diff.measured.b
    statistic = diff.measured.statistic
    figures: list[tuple[str, Callable[[MeasuredSide], float | None], str | None]] = [
        (f"Step, unprofiled ({statistic})", lambda side: side.step_ns, "ns"),
        ("5 % of the steps are shorter than", lambda side: side.low_ns, "ns"),
        ("5 % of the steps are longer than", lambda side: side.high_ns, "ns"),
        ("Waiting for data", lambda side: side.loader_wait_ns, "ns"),
        ("Peak allocated", lambda side: side.peak_allocated_bytes, "B"),
        ("Syncs per step, measured", lambda side: side.measured_syncs_per_step, None),
        ("Syncs per step, predicted", lambda side: side.predicted_syncs_per_step, None),
    ]
    rows = []
    for name, figure, unit in figures:
        a, b = (None if side is None else figure(side) for side in sides)
        if a is not None and b is not None:
            rows.append((name, _pair(Pair(a=a, b=b), unit)))
        elif a is not None or b is not None:
            rows.append((name, f"{fmt.with_unit(a, unit)} → {fmt.with_unit(b, unit)}"))
    estimates = [{} if side is None else {one.gpu: one for one in side.estimates} for side in sides]
    for gpu in dict.fromkeys(name for by_gpu in estimates for name in by_gpu):
        a_words, b_words = (step_words(by_gpu[gpu]) if gpu in by_gpu else fmt.NOT_MEASURED for by_gpu in estimates)
        rows.append((f"Step on {gpu}, estimated", a_words if a_words == b_words else f"{a_words} → {b_words}"))
    return rows


def measured_notes(diff: Diff) -> list[str]:
    """How far the measured figures carry, and which predicted syncs come and go."""
    if diff.measured is None:
        return []
    sides = [side for side in (diff.measured.a, diff.measured.b) if side is not None]
    notes = []
    if len(sides) == _BOTH:
        a, b = (fmt.plural(side.runs, "run") for side in sides)
        runs = f"{a} each" if a == b else f"{a} in A and {b} in B"
        notes.append(f"{runs}, so no verdict: a study compares several runs, with intervals.")
    predicted = diff.measured.predicted_syncs
    if predicted is not None and (text := changed(predicted)):
        notes.append(f"B {text} (predicted syncs per step).")
    if diff.measured.environment:
        notes.append(f"The two ran in different environments: {fmt.enumeration([*diff.measured.environment])}.")
    return notes


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
    notes = [*(note.replace("`", "").removesuffix(".") for note in measured_notes(diff)), *diff.notes]
    lines = [f"A: {_side(diff.a)}", f"B: {_side(diff.b)}", diff.cause, *(f"note: {note}" for note in notes)]
    in_all = [*measured_rows(diff), *totals(diff)]
    width = max((len(name) for name, _ in in_all), default=0)
    lines += [f"  {name:{width}}  {words}" for name, words in in_all]
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
    return next(_NEEDS[one.needs] for one in TOPICS if one.name == topic)


def _side(side: DiffSide) -> str:
    if not side.paths:
        return "no trace"
    traces = side.paths[0] if len(side.paths) == 1 else f"{len(side.paths)} traces, {side.paths[0]} ..."
    return f"{traces} ({', '.join([fmt.plural(side.steps, 'step'), *side.devices])})"


def _named(row: RowChange) -> Sequence[str]:
    only = "" if row.in_a and row.in_b else "only in A" if row.in_a else "only in B"
    return fmt.clipped(row.name, _LONGEST), row.place or "", only, "renamed" if row.renamed_from else ""


def page_html(diff: Diff) -> str:
    """The whole page."""
    every = topics(diff)
    measured = measured_rows(diff)
    toc = [
        *([("measured", "Measured without the profiler")] if measured else []),
        ("totals", "In all"),
        *((topic, heading) for topic, heading, *_ in every),
    ]
    terms = definitions(["RowChange.renamed_from", *(f"StepFigures.{f.name}" for f in STEP_FIGURES)])
    body = render("diff", diff=diff, toc=toc, sides=[("A", diff.a), ("B", diff.b)])
    if measured:
        table = Explained(text_table(("", "A → B"), measured))
        body += section("measured", "Measured without the profiler", [*map(note, measured_notes(diff)), table])
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
