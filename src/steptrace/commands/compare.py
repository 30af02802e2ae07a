"""`steptrace compare`: one study's results from two machines, versions or dates."""

import argparse
import json
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from steptrace.commands.output import columns, show, writing_to
from steptrace.errors import RecordError

if TYPE_CHECKING:
    from steptrace.documents.comparison import Comparison
    from steptrace.judging.pair import Pair


def add(command: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    command.description = (
        "Compare a study's comparison.json of two machines, versions or dates: which variants changed, in which "
        "figures, with intervals, and which keys of the environment differ. Writes compare.json, compare.md and "
        "compare.html if --out names a folder."
    )
    command.add_argument("a", type=Path, metavar="A", help="comparison.json, or the folder that holds it")
    command.add_argument("b", type=Path, metavar="B", help="what is compared with it")
    command.add_argument("--out", type=Path, metavar="DIR", help="folder to write to, made if missing")
    command.add_argument("--markdown", action="store_true", help="print Markdown instead of text")


def run(arguments: argparse.Namespace) -> int:
    """Compare, write what was asked for, print, and return the exit code."""
    from steptrace.files import versioned, write_json, write_text
    from steptrace.judging.pair import pair
    from steptrace.report import pair as pages

    found = pair(_read(arguments.a), _read(arguments.b))
    content = versioned(asdict(found))
    if arguments.out is not None:
        out: Path = arguments.out
        with writing_to(out):
            write_json(out / "compare.json", content)
            write_text(out / "compare.md", pages.markdown(found))
            write_text(out / "compare.html", pages.page_html(found))
    text = pages.markdown(found) if arguments.markdown else _text(found)
    page = [] if arguments.out is None else [str(arguments.out / "compare.html")]
    show(arguments, content, "\n".join([text, *page]))
    return 0


def _read(path: Path) -> "Comparison":
    from steptrace.documents.base import read
    from steptrace.documents.comparison import Comparison

    try:
        return read(path / "comparison.json" if path.is_dir() else path, Comparison)
    except RecordError as error:
        if path.is_file() and _is_baseline(path):
            raise RecordError(
                "a stored baseline, which holds step times and no runs",
                where=path,
                expected="a study's comparison.json",
                next_step=f"steptrace baseline compare --from {shlex.quote(str(path))}, or steptrace history "
                f"{shlex.quote(str(path.parent))}",
            ) from error
        raise


def _is_baseline(path: Path) -> bool:
    try:
        return "saved_at" in json.loads(path.read_bytes())
    except (ValueError, TypeError, OSError):
        return False


def _text(found: "Pair") -> str:
    from steptrace.judging.pair import headline
    from steptrace.report.pair import figure_rows, step_rows

    lines = [f"{found.study}: {headline(found).replace('`', '')}", *(f"note: {note}" for note in found.notes)]
    head = ("variant", "step in A", "step in B", "A / B", "95 % interval", "B is")
    lines += ["", *columns(head, step_rows(found))]
    if rows := figure_rows(found):
        lines += ["", *columns(("variant", "figure", "A", "B"), rows)]
    if found.environment:
        lines += [
            "",
            *columns(("environment", "A", "B"), [(e.name, e.a or "-", e.b or "-") for e in found.environment]),
        ]
    for side, texts in (("A", found.findings_only_a), ("B", found.findings_only_b)):
        lines += ["", f"findings in {side} only:", *(f"  {text}" for text in texts)] if texts else []
    return "\n".join(lines)
