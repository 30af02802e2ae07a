"""`steptrace compare`: one study's results from several machines, versions or dates."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Final

from steptrace.commands.console import show, writing_to
from steptrace.errors import ConfigError, RecordError
from steptrace.exit_codes import ExitCode
from steptrace.format import columns, without_backticks
from steptrace.output_folder import OutputFolder

if TYPE_CHECKING:
    from steptrace.documents.comparison import ComparedResults, Comparison

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
    page = [] if arguments.out is None else [str(arguments.out / "compare.html")]
    show(arguments, compared, "\n".join([_text(compared), *page]))
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


def _text(compared: "ComparedResults") -> str:
    from steptrace.report.results import sections

    lines = []
    for title, notes, tables in sections(compared):
        lines += [title, *(without_backticks(note) for note in notes), ""]
        for heading, head, rows in tables:
            lines += [heading] if heading else []
            lines += [*columns(head, rows), ""]
    return "\n".join(lines[:-1])
