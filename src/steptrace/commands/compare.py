"""`steptrace compare`: one study's results from several machines, versions or dates."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from steptrace import format as fmt
from steptrace.commands.console import show, writing_to
from steptrace.errors import ConfigError, RecordError
from steptrace.exit_codes import ExitCode
from steptrace.output_folder import OutputFolder
from steptrace.words.lines import SCREEN, rows_shown

if TYPE_CHECKING:
    from steptrace.documents.comparison import ComparedResults, Comparison
    from steptrace.report.results import Part

_WRITES: Final = ("compare.json", "compare.md", "compare.html")


def add(command: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    command.description = (
        "Compare several comparison.json of one study, each with the one before it: two machines, two versions, or a "
        "series over time. Says which variants changed, in which figures, with intervals, and which keys of the "
        "environment differ. Writes compare.json, compare.md and compare.html if --out names a folder."
    )
    command.add_argument(
        "results",
        nargs="+",
        type=Path,
        metavar="RESULT",
        help="comparison.json, or the folder that holds it; oldest first",
    )
    command.add_argument("--out", type=Path, metavar="DIR", help="folder to write to, made if missing")


def run(arguments: argparse.Namespace) -> int:
    """Compare the results, write the files that were asked for, print, and return the exit code."""
    if len(arguments.results) < 2:
        raise ConfigError("only one result is given", expected="two or more: steptrace compare BEFORE NOW")
    from steptrace.compare.results import compare_results
    from steptrace.documents.base import write
    from steptrace.files import write_text
    from steptrace.report import results as pages

    compared = compare_results([(str(path), _read(path)) for path in arguments.results])
    if arguments.out is not None:
        out: Path = arguments.out
        with writing_to(out), OutputFolder(out, _WRITES, by="steptrace compare") as folder:
            write(folder.file("compare.json"), compared)
            write_text(folder.file("compare.md"), pages.markdown(compared))
            write_text(folder.file("compare.html"), pages.page_html(compared))
    show(arguments, compared, _text(compared, arguments.out))
    return ExitCode.DONE


def _read(path: Path) -> "Comparison":
    from steptrace.documents.base import read
    from steptrace.documents.comparison import Comparison

    file = path / "comparison.json" if path.is_dir() else path
    studies = sorted(file.parent for file in path.glob("*/comparison.json")) if path.is_dir() else []
    if studies and not file.exists():
        raise RecordError(
            "the folder holds results of several studies",
            where=path,
            expected="the results of one study",
            next_step=f"name {' or '.join(map(str, studies[:3]))}",
        )
    if path.is_dir() and not file.exists() and (result := runs_in(path)) is not None:
        raise RecordError(
            f"the folder holds {result}, not that of a study",
            where=path,
            expected="a folder with a comparison.json",
            next_step="steptrace diff A B --out DIR compares two traces, or two folders that `steptrace run` wrote",
        )
    return read(file, Comparison)


def runs_in(folder: Path) -> str | None:
    """The content of a folder without a comparison.json, in words, if another command compares it; else None."""
    if any(folder.glob("run[0-9]*/run.json")) or (folder / "run.json").exists():
        return "the result of `steptrace run`"
    if (folder / "summary.json").exists():
        return "the result of `steptrace analyze`"
    return None


def _text(compared: "ComparedResults", out: Path | None) -> str:
    """The result on a screen: all step times, the last change and those before it that fit, and the page."""
    from steptrace.report.results import sections

    results, *changes = sections(compared)
    free = SCREEN - 2  # the last two lines say how much is left out, and name the page
    # The first change that is shown: with it and all later ones, a row of each table fits.
    begin = next((n for n in range(len(changes)) if len(_lines([results, *changes[n:]], 0)) <= free), len(changes) - 1)
    parts = [results, *changes[begin:]]
    without_rows = len(_lines(parts, 0)) - sum(min(rows, 1) for rows in _numbers_of_rows(parts))
    lines = _lines(parts, free - without_rows)
    rows_left = without_rows + sum(_numbers_of_rows(parts)) - len(lines)
    left_out = [fmt.plural(number, what) for number, what in ((rows_left, "row"), (begin, "earlier change")) if number]
    if left_out:
        has_all = "--out DIR writes a page with all" if out is None else "the page has all"
        lines.append(f"Left out: {fmt.enumeration(left_out)}; {has_all}.")
    return "\n".join([*lines, *([] if out is None else [str(out / "compare.html")])])


def _numbers_of_rows(parts: "Sequence[Part]") -> list[int]:
    return [len(rows) for _, _, tables in parts for _, _, rows in tables]


def _lines(parts: "Sequence[Part]", free: int) -> list[str]:
    """The parts as lines, their tables with as many rows as fit in `free` lines, but one at least."""
    shown = iter(rows_shown(_numbers_of_rows(parts), free))
    lines = []
    for title, notes, tables in parts:
        lines += [title, *(fmt.without_backticks(note) for note in notes), ""]
        for heading, head, rows in tables:
            number = next(shown)
            of_all = "" if number == len(rows) else f", {number} of {len(rows)} rows"
            lines += [f"{heading}{of_all}"] if heading else []
            lines += [*fmt.columns(head, rows[:number]), ""]
    return lines[:-1]
