"""The page, the Markdown and the text of `steptrace compare`: several results of one study."""

import math
from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import Final

from steptrace import format as fmt
from steptrace.documents.comparison import Change, ComparedResults, VariantChange
from steptrace.markdown import clean, table
from steptrace.report.charts.cells import Interval, interval_cell
from steptrace.report.charts.lines import Series, lines, measured_point, scale_of
from steptrace.report.charts.scale import Scale
from steptrace.report.page.markup import breakable, definitions, page, render
from steptrace.report.page.section import Explained, note, section, subheading, wide_picture
from steptrace.report.page.table import text_table
from steptrace.words.results import NOT_COMPARED, change_note_text

#: A table: its heading, the names of its columns, its rows.
Table = tuple[str, Sequence[str], Sequence[Sequence[str]]]
#: A part of the result: its heading, sentences, tables.
Part = tuple[str, list[str], list[Table]]
#: The most changes from one result to the next that the top of the page names, the last ones.
_MOST_CHANGES: Final = 3
#: The most rows of the picture of two results, those that changed most.
_MOST_RATIOS: Final = 12
#: Lines of the chart, and letters of a result's name below it.
_MOST_LINES: Final = 8
_LONGEST_COLUMN: Final = 18
#: A result's path of more folders is shortened in headings.
_MOST_FOLDERS: Final = 3


def headline(change: Change) -> str:
    """The differences in one sentence; names are in backticks."""
    clauses = [change_note_text(note) for note in change.remarks if note.code in NOT_COMPARED]
    if not clauses:
        named = {
            word: [variant for variant in change.variants if _verdict(variant) == word] for word in ("faster", "slower")
        }
        for word, variants in named.items():
            names = [*map(_with_ratio, variants[:5]), *([f"{len(variants) - 5} more"] if len(variants) > 5 else [])]
            clauses += [f"{word} now: {fmt.enumeration(names)}"] if names else []
        for word, name in (
            ("same", "as fast as before"),
            ("undecided", "undecided"),
            ("no verdict", "without a verdict"),
        ):
            count = sum(_verdict(variant) == word for variant in change.variants)
            clauses += [f"{fmt.plural(count, 'variant')} {name}"] if count else []
    other = sum(bool(variant.differing) for variant in change.variants)
    if all(note.code != "same_result" for note in change.remarks):
        differ = f"other figures differ in {fmt.plural(other, 'variant')}" if other else "no other figure differs"
        clauses.append(differ)
    text = "; ".join(clauses)
    return f"{text[0].upper()}{text[1:]}."


def _verdict(variant: VariantChange) -> str:
    return "no verdict" if variant.ratio is None else variant.ratio.verdict or "no verdict"


def _with_ratio(variant: VariantChange) -> str:
    ratio = variant.ratio
    assert ratio is not None
    by = fmt.ratio(ratio.value, ratio.low, ratio.high)
    return f"`{fmt.variant(variant.name)}` ({by}, {fmt.ratio_interval(ratio.low, ratio.high)})"


def sections(compared: ComparedResults) -> list[Part]:
    """The parts of the page: a heading, sentences, tables. The first has all step times, then one a change."""
    names_of = short_names([result.file for result in compared.results])
    rows = [
        (r.file, fmt.NOT_MEASURED if r.measured_at is None else r.measured_at[:10], r.machine) for r in compared.results
    ]
    # The variants that have a step time in some result.
    names = dict.fromkeys(name for result in compared.results for name, times in result.step_ms.items() if times)
    machines: Table = ("", ("Result", "Measured", "Machine"), rows)
    times = _steps(compared, names_of, list(names))
    parts: list[Part] = [("Results", [], [machines, times])]
    for number, change in enumerate(compared.changes):
        title = f"From {names_of[number]} to {names_of[number + 1]}"
        remarks = [change_note_text(note) for note in change.remarks if note.code not in NOT_COMPARED]
        notes = [headline(change), *(f"{note[0].upper()}{note[1:]}." for note in remarks)]
        for where, only in (("the first", change.only_before), ("the second", change.only_now)):
            notes += (
                [f"Only in {where}: {fmt.enumeration([f'`{fmt.variant(name)}`' for name in only])}."] if only else []
            )
        parts.append((title, notes, list(_tables(change))))
    return parts


def short_names(files: Sequence[str]) -> list[str]:
    """The files without the folders and the name that all share, such as `old` of `kept/old/giou/comparison.json`.

    A longer path is cut at its beginning, as long as no other file has the same name then.
    """
    paths = [PurePath(file).parts for file in files]
    begin = _alike(paths)
    end = _alike([path[::-1] for path in paths])
    middles = [path[begin : len(path) - end] for path in paths]
    names = [str(PurePath(*parts)) for parts in middles] if all(middles) else list(files)
    short = [_end_of(name) for name in names]
    return [end if short.count(end) == 1 else name for name, end in zip(names, short, strict=True)]


def _end_of(name: str) -> str:
    """The last folders of a long path, without the name that every result's file has."""
    parts = PurePath(name).parts
    if len(parts) <= _MOST_FOLDERS:
        return name
    return str(PurePath(*(parts[:-1] if parts[-1] == "comparison.json" else parts)[-2:]))


def column_names(compared: ComparedResults) -> list[str]:
    """Names of the results in a chart: their dates, versions or machines if these differ, or their files."""
    results = compared.results
    dates = [None if result.measured_at is None else result.measured_at[:10] for result in results]
    candidates: list[list[str | None]] = [
        dates,
        [result.torch and f"PyTorch {result.torch}" for result in results],
        [result.steptrace and f"steptrace {result.steptrace}" for result in results],
        [result.machine for result in results],
    ]
    for names in candidates:
        known = [name for name in names if name]
        if len(set(known)) == len(results):
            return [fmt.clipped(name, _LONGEST_COLUMN) for name in known]
    return [fmt.clipped(name, _LONGEST_COLUMN) for name in short_names([result.file for result in results])]


def chart(compared: ComparedResults) -> Explained:
    """The step times over the results, a line a variant; of two results a row a variant with the ratio of its times."""
    if len(compared.changes) == 1:
        return _ratios_of_two(compared.changes[0])
    names = dict.fromkeys(name for result in compared.results for name, times in result.step_ms.items() if times)
    series = [
        Series(fmt.variant(name), [measured_point(result.step_ms.get(name)) for result in compared.results])
        for name in list(names)[:_MOST_LINES]
    ]
    scale = scale_of(series)
    if scale is None:
        return Explained("")
    caption = f"{len(names) - _MOST_LINES} more variants are in the table." if len(names) > _MOST_LINES else ""
    drawn = lines(column_names(compared), series, scale, "Step time of each variant in each result.")
    return wide_picture(drawn, "Step times, with their intervals", caption)


def _ratios_of_two(change: Change) -> Explained:
    """The ratio of step times of each variant with its interval, on one scale, beside a line at 1."""
    ratios = {variant.name: variant.ratio for variant in change.variants if variant.ratio is not None}
    if not ratios:
        return Explained("")
    largest = set(sorted(ratios, key=lambda name: -abs(math.log(ratios[name].value)))[:_MOST_RATIOS])
    more = len(ratios) - len(largest)
    scale = Scale.showing([1.0, *(end for r in ratios.values() for end in (r.value, r.low, r.high) if end)])
    rows = []
    for variant in change.variants:
        words, interval, verdict = _ratio(variant)
        if variant.name in largest and (ratio := variant.ratio) is not None:
            ends = None if ratio.low is None or ratio.high is None else (ratio.low, ratio.high)
            alt = f"{fmt.variant(variant.name)}: {words}, {interval}"
            drawn = interval_cell(scale, Interval(ratio.value, ends), 1.0, "measured", alt)
            rows.append([breakable(fmt.variant(variant.name)), drawn, words, verdict])
    shown = text_table(("Variant", "Before / now: right of the line is faster now", "Ratio", "Now"), rows)
    below = f"The {fmt.plural(more, 'other variant')} changed less." if more else ""
    return wide_picture(shown, "Step times before, over step times now, with their intervals", below)


def _alike(paths: Sequence[Sequence[str]]) -> int:
    """The number of leading parts that all paths share; 0 if no part differs."""
    differ = [len(set(parts)) > 1 for parts in zip(*paths, strict=False)]
    return differ.index(True) if True in differ else 0


_RATIO_COLUMNS: Final = ("Before / now", "95 % interval", "Now")


def _steps(compared: ComparedResults, files: Sequence[str], names: Sequence[str]) -> Table:
    """Step times with a row for each variant and a column for each result, each with its ratio to the one before.

    Results whose step times cannot be compared have no ratios.
    """
    head = ["Variant", f"Step, {files[0]}"]
    is_compared = [any(variant.ratio is not None for variant in change.variants) for change in compared.changes]
    for number, file in enumerate(files[1:]):
        head += [f"Step, {file}", *(_RATIO_COLUMNS if is_compared[number] else ())]
    rows = []
    for name in names:
        row = [fmt.variant(name)]
        for number, result in enumerate(compared.results):
            times = result.step_ms.get(name)
            row.append(fmt.duration_ms(None if times is None else times.value))
            if number and is_compared[number - 1]:
                row += _ratio(
                    next((variant for variant in compared.changes[number - 1].variants if variant.name == name), None)
                )
        rows.append(row)
    return "Step times", head, rows


def _ratio(variant: VariantChange | None) -> tuple[str, str, str]:
    if variant is None or variant.ratio is None:
        return "-", "-", "no verdict"
    ratio = variant.ratio
    interval = "-" if ratio.low is None else fmt.ratio_interval(ratio.low, ratio.high)
    return fmt.ratio(ratio.value, ratio.low, ratio.high), interval, _verdict(variant)


def _tables(change: Change) -> Iterator[Table]:
    figures = [
        (fmt.variant(variant.name), figure.name, figure.before or fmt.NOT_MEASURED, figure.now or fmt.NOT_MEASURED)
        for variant in change.variants
        for figure in variant.differing
    ]
    if figures:
        yield "Other figures", ("Variant", "Figure", "Before", "Now"), figures
    if change.environment:
        rows = [(key.name, key.before or "none", key.now or "none") for key in change.environment]
        yield "Environment", ("Key", "Before", "Now"), rows
    findings = [("before", text) for text in change.findings_before] + [("now", text) for text in change.findings_now]
    if findings:
        yield "Findings of one result alone", ("Result", "Finding"), findings


def page_html(compared: ComparedResults) -> str:
    """The whole page."""
    parts = sections(compared)
    toc = [(f"part-{number}", title) for number, (title, _, _) in enumerate(parts)]
    changes = [(title, notes[0]) for title, notes, _ in parts[1:]]
    body = render("results", compared=compared, toc=toc, chart=chart(compared).html, changes=changes[-_MOST_CHANGES:])
    terms = Explained("", definitions(["VariantChange.ratio", "VariantChange.differing"]))
    for number, (title, notes, tables) in enumerate(parts):
        shown = list(map(note, notes))
        for heading, head, rows in tables:
            shown += [subheading(heading)] if heading else []
            shown.append(Explained(text_table(head, [[breakable(row[0]), *row[1:]] for row in rows])))
        body += section(f"part-{number}", title, [*shown, *([] if number else [terms])])
    return page(f"{compared.title}: results compared – steptrace", body, toc)


def markdown(compared: ComparedResults) -> str:
    """The same as Markdown."""
    lines = [f"## {clean(compared.title)} (`{compared.study}`)", ""]
    for title, notes, tables in sections(compared):
        lines += [f"### {clean(title)}", "", *(f"{clean(note)}\n" for note in notes)]
        for heading, head, rows in tables:
            lines += [f"**{heading}**\n"] if heading else []
            lines.append(table(head, rows))
    return "\n".join(lines)
