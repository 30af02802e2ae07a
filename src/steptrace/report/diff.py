"""The page and the text of `steptrace diff`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from steptrace import format as fmt
from steptrace.documents.base import Document, shown_columns
from steptrace.documents.diff import TOPICS, Diff, DiffSide, MeasuredSide, Needs, Pair, RowChange
from steptrace.documents.overview import part_name
from steptrace.documents.steps import STEP_FIGURES
from steptrace.documents.subject import subjects_of
from steptrace.documents.summary import TraceSummary
from steptrace.report.page.markup import Html, breakable, definitions, page, render
from steptrace.report.page.section import Explained, note, section
from steptrace.report.page.table import text_table
from steptrace.report.page.waterfall import PartChange, waterfall_figure
from steptrace.report.study.syncs import changed
from steptrace.words.estimate import step_words
from steptrace.words.lines import SCREEN, rows_shown

#: The largest multiple that is shown: beyond it the two figures say more.
_MOST_TIMES: Final = 20
#: How many rows of a topic the page lists, and the terminal; diff.json has all.
MOST_ROWS: Final = 10
#: Letters of a name; diff.json has all.
_LONGEST: Final = 100
_MOST_LINES: Final = 8
#: How many figures of a row stand side by side; diff.json has all.
_MOST_FIGURES: Final = 3
_BOTH: Final = 2
#: The most rows of a topic that are listed as being on one side only.
_MOST_ONE_SIDED: Final = 4
#: A table: its name, its heading, the headings of its columns, and its rows, each with its figures in words.
TopicTable = tuple[str, str, list[str], list[tuple[RowChange, list[str]]]]
#: The figures that both sides must have for a topic, in words.
_NEEDS: Final[Mapping[Needs, str]] = {
    "gpu_work": "GPU work",
    "gpu_work_with_lines": "GPU work with its launches, and with lines or Python frames",
    "gpu_work_with_syncs": "GPU work with the calls that wait for it",
    "profiled_steps": "profiled steps",
}


def topics(diff: Diff) -> list[TopicTable]:
    """Every topic with its columns' headings and its rows in words; the tables that changed come last."""
    tables = []
    of_subjects = [
        (subject.name, subject.heading, subject.kind)
        for subject in subjects_of(TraceSummary)
        if subject.name in diff.tables
    ]
    of_topics = [(topic.name, topic.heading, topic.kind) for topic in TOPICS]
    for topic, heading, kind in (*of_topics, *of_subjects):
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
    """The figures without the profiler, the predictions and the estimates, in words; empty for traces alone.

    A figure that neither side has is left out.
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
    estimates = [{} if side is None else {estimate.gpu: estimate for estimate in side.estimates} for side in sides]
    for gpu in dict.fromkeys(name for by_gpu in estimates for name in by_gpu):
        a_words, b_words = (step_words(by_gpu[gpu]) if gpu in by_gpu else fmt.NOT_MEASURED for by_gpu in estimates)
        rows.append((f"Step on {gpu}, estimated", a_words if a_words == b_words else f"{a_words} → {b_words}"))
    return rows


def measured_notes(diff: Diff) -> list[str]:
    """Notes on how far the measured figures can be compared, and on predicted syncs that are new or gone.

    Each is a sentence without its full stop. Names are in backticks.
    """
    if diff.measured is None:
        return []
    sides = [side for side in (diff.measured.a, diff.measured.b) if side is not None]
    notes = []
    if len(sides) == _BOTH:
        a, b = (fmt.plural(side.runs, "run") for side in sides)
        runs = f"{a} each" if a == b else f"{a} in A and {b} in B"
        notes.append(f"{runs}, so no verdict: a study compares several runs, with intervals")
    predicted = diff.measured.predicted_syncs
    if predicted is not None and (text := changed(predicted)):
        notes.append(f"B {text} (predicted syncs per step)")
    if diff.measured.environment:
        notes.append(f"The two ran in different environments: {fmt.enumeration([*diff.measured.environment])}")
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
    """The diff as lines for a terminal: the cause, the step's parts, and of each topic the largest changes.

    With the name of the page, which the command adds, they fill a screen at most.
    """
    notes = [*(fmt.without_backticks(note) for note in measured_notes(diff)), *diff.notes]
    lines = [f"A: {_side(diff.a)}", f"B: {_side(diff.b)}", diff.cause, *(f"note: {note}" for note in notes)]
    in_all = [*measured_rows(diff), *totals(diff)]
    width = max((len(name) for name, _ in in_all), default=0)
    lines += [f"  {name:{width}}  {words}" for name, words in in_all]
    compared = topics(diff)[: len(TOPICS)]
    # A line of each topic is its heading; the last two lines say where the rest is, and name the page.
    free = SCREEN - len(lines) - len(compared) - 2
    shown = rows_shown([min(len(rows), _MOST_LINES) for _, _, _, rows in compared], free)
    for (topic, heading, head, rows), number in zip(compared, shown, strict=True):
        if topic in diff.not_measured:
            lines.append(f"{heading.lower()}: not measured (needs {_needs(topic)} on both sides)")
        else:
            figures = f" ({', '.join(map(_inside, head))})" if head else ""
            largest = f", the {number} largest" if number < len(rows) else ""
            lines.append(f"{heading.lower()}, per {_unit(diff)}: {fmt.plural(len(rows), 'change')}{largest}{figures}")
            lines += [f"  {'; '.join(filter(None, _named(row)))}: {', '.join(c)}" for row, c in rows[:number]]
    if any(number < len(rows) for (_, _, _, rows), number in zip(compared, shown, strict=True)):
        lines.append("All changes are in diff.json, more of them on the page.")
    return "\n".join(lines)


def _inside(heading: str) -> str:
    """A heading within a sentence: "calls", "GPU time"."""
    return heading if heading[:2].isupper() else f"{heading[:1].lower()}{heading[1:]}"


def _needs(topic: str) -> str:
    return next(_NEEDS[known.needs] for known in TOPICS if known.name == topic)


def _side(side: DiffSide) -> str:
    if not side.paths:
        return "no trace"
    traces = side.paths[0] if len(side.paths) == 1 else f"{len(side.paths)} traces, {side.paths[0]} ..."
    return f"{traces} ({', '.join([fmt.plural(side.steps, 'step'), *side.devices])})"


def _named(row: RowChange) -> Sequence[str]:
    if row.in_a and row.in_b:
        only = ""
    elif row.in_a:
        only = "only in A"
    else:
        only = "only in B"
    return fmt.clipped(row.name, _LONGEST), row.place or "", only, "renamed" if row.renamed_from else ""


def page_html(diff: Diff) -> str:
    """The whole page."""
    shown_topics = topics(diff)
    measured = measured_rows(diff)
    one_sided = _one_sided(diff)
    toc = [
        *([("one-sided", "Only on one side")] if one_sided else []),
        *([("measured", "Measured without the profiler")] if measured else []),
        ("totals", "In all"),
        *((topic, heading) for topic, heading, *_ in shown_topics),
    ]
    terms = definitions(["RowChange.renamed_from", *(f"StepFigures.{f.name}" for f in STEP_FIGURES)])
    has_traces = bool(diff.a.paths and diff.b.paths)
    body = render(
        "diff",
        cause=diff.cause,
        sides=[_shown_side("A", diff.a), _shown_side("B", diff.b)],
        waterfall=_waterfall(diff),
        profiled=("All figures" if diff.measured is None else "All other figures") if has_traces else "",
        notes=diff.notes,
        toc=toc,
    )
    if one_sided:
        body += section("one-sided", "Only on one side", one_sided)
    if measured:
        table = Explained(text_table(("", "A → B"), measured))
        body += section(
            "measured", "Measured without the profiler", [*(note(f"{text}.") for text in measured_notes(diff)), table]
        )
    in_all = text_table((f"Per {_unit(diff)}", "A → B"), totals(diff))
    body += section("totals", "In all", [Explained(in_all, terms)])
    for topic, heading, head, rows in shown_topics:
        parts = _topic(diff, topic, heading, head, rows)
        body += section(topic, heading, parts, folded=topic in diff.tables)
    return page("Diff – steptrace", body, toc)


@dataclass(frozen=True)
class _Side:
    """A side of the diff: its name, its traces, and how many steps they have on which devices."""

    name: str
    paths: Sequence[str]
    recorded: str


def _shown_side(name: str, side: DiffSide) -> _Side:
    return _Side(name, side.paths, ", ".join([fmt.plural(side.steps, "step"), *side.devices]))


def _waterfall(diff: Diff) -> Html:
    """The waterfall from A's step to B's, part by part; empty if a side has no step, or not all parts."""
    a, b = diff.step_ns.a, diff.step_ns.b
    changes = [
        PartChange(part, part_name(part), pair.b - pair.a)
        for part, pair in diff.parts_ns.items()
        if pair.a is not None and pair.b is not None
    ]
    # The changes lead from A to B only if each part is known of both.
    if a is None or b is None or not changes or len(changes) < len(diff.parts_ns):
        return Html("")
    title = f"Where the difference comes from, per {_unit(diff)}"
    return waterfall_figure(title, (f"A, profiled {_unit(diff)}", a), changes, (f"B, profiled {_unit(diff)}", b))


def _one_sided(diff: Diff) -> list[Explained]:
    """The rows that only A or only B has, the largest of each topic; nothing if both have the same rows."""
    rows: list[tuple[str, str, Html, str]] = []
    more = 0
    for side in ("A", "B"):
        for topic in TOPICS:
            if topic.name in diff.not_measured:
                continue
            alone = [row for row in diff.rows(topic.name) if not (row.in_b if side == "A" else row.in_a)]
            more += len(alone[_MOST_ONE_SIDED:])
            rows += [
                (side, topic.heading, _row_name(row, says_side=False), _figures_of(row, topic.kind, side))
                for row in alone[:_MOST_ONE_SIDED]
            ]
    if not rows:
        return []
    table = text_table(("Only in", "What", "Name", f"Per {_unit(diff)}"), rows)
    return [Explained(table), *([note(f"{more} more with less time; diff.json lists all.")] if more else [])]


def _figures_of(row: RowChange, kind: type[Document], side: str) -> str:
    """The totals of a row on its side: "calls 2, GPU time 1.20 ms"."""
    words = []
    for column in shown_columns(kind):
        pair = row.figures.get(column.name)
        if pair is None:
            value = None
        elif side == "A":
            value = pair.a
        else:
            value = pair.b
        if column.total and value:
            words.append(f"{_inside(column.heading)} {fmt.with_unit(value, column.unit)}")
    return ", ".join(words[:_MOST_FIGURES])


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


def _row_name(row: RowChange, *, says_side: bool = True) -> Html:
    """The name of a row with its place and its other names in A; with `says_side`, also the only side that has it."""
    html = Html('<span class="place">{}</span>').format(breakable(fmt.clipped(row.name, _LONGEST)))
    only = "" if (row.in_a and row.in_b) or not says_side else f"only in {'A' if row.in_a else 'B'}"
    for text in filter(None, (row.place, only)):
        html += Html('<span class="note">{}</span>').format(breakable(text))
    if row.renamed_from:
        html += Html("<details><summary>under another name in A</summary>{}</details>").format(
            "; ".join(fmt.clipped(name, _LONGEST) for name in row.renamed_from)
        )
    return html
