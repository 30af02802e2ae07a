"""`steptrace history`: a study's variants over time and versions, from kept results."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from steptrace.commands.output import columns, show, warn, writing_to
from steptrace.errors import RecordError
from steptrace.names import near

if TYPE_CHECKING:
    from steptrace.documents.kept import History


def add(command: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    command.description = (
        "Step times of every variant over the results in some folders, oldest first: copies of comparison.json under "
        "any name, baselines, and results/ as the workflow leaves it. What changed of the environment is marked; a "
        "result is judged against the one before it on the same machine. Files that hold no result are skipped."
    )
    command.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="folder with kept results, or a file")
    command.add_argument("--study", action="append", default=[], metavar="NAME", help="only this study, or these")
    command.add_argument("--variant", action="append", default=[], metavar="NAME", help="only this variant, or these")
    command.add_argument("--out", type=Path, metavar="DIR", help="write history.json, .md and .html there")
    command.add_argument("--markdown", action="store_true", help="print Markdown instead of text")


def run(arguments: argparse.Namespace) -> int:
    """Read, write what was asked for, print, and return the exit code."""
    from steptrace.documents.base import write
    from steptrace.documents.kept import History, Skipped
    from steptrace.files import write_text
    from steptrace.judging.history import find_results, trends
    from steptrace.report import history as pages

    by_study, problems = find_results(arguments.folders)
    if unknown := [name for name in arguments.study if name not in by_study]:
        raise RecordError(f"no kept result of the study '{unknown[0]}'", expected=", ".join(by_study) or "kept results")
    chosen = {name: results for name, results in by_study.items() if not arguments.study or name in arguments.study}
    variants = {name for results in chosen.values() for result in results for name in result.step_ms}
    if unknown := [name for name in arguments.variant if name not in variants]:
        raise RecordError(f"no step time of the variant '{unknown[0]}' is kept", next_step=near(unknown[0], variants))
    skipped = tuple(Skipped(str(file), reason) for file, reason in problems)
    found = History(studies=trends(chosen, arguments.variant), skipped=skipped)
    if not arguments.json and not arguments.markdown:
        for one in found.skipped:
            warn(f"skipped {one.file}: {one.reason}")
    if not any(pages.variants_of(study) for study in found.studies):
        where = ", ".join(map(str, arguments.folders))
        raise RecordError(
            "no step times of what was asked for are kept", where=where, expected="comparison.json files or baselines"
        )
    out: Path | None = arguments.out
    if out is not None:
        with writing_to(out):
            write(out / "history.json", found)
            write_text(out / "history.md", pages.markdown(found))
            write_text(out / "history.html", pages.page_html(found))
    text = pages.markdown(found) if arguments.markdown else _text(found)
    show(arguments, msgspec.to_builtins(found), "\n".join([text, *([str(out / "history.html")] if out else [])]))
    return 0


def _text(found: "History") -> str:
    from steptrace.report.history import HEAD, rows, variants_of

    lines = []
    for study in found.studies:
        for variant in variants_of(study):
            lines += [f"{study.study}: {variant}", *columns([word.lower() for word in HEAD], rows(study, variant)), ""]
    return "\n".join(lines[:-1])
