"""`steptrace analyze`: figures and a page from any PyTorch traces."""

import argparse
import importlib
import importlib.util
import json
import pkgutil
import re
import sys
from pathlib import Path
from typing import Any, Final

import msgspec

from steptrace import schema
from steptrace.errors import SteptraceError
from steptrace.record import replace_atomically

#: What every page of steptrace says of itself.
_GENERATOR: Final = '<meta name="generator" content="steptrace">'
_PAGE_MODULE: Final = "steptrace.report.trace_page"
#: What `write_tables` and `write_counters` call a trace's folder and file.
_OF_A_TRACE: Final = re.compile(r"trace\d+(?:\.json\.gz)?|ranks")
#: Tables that go by another name than the one they are declared by.
_UNDECLARED: Final = frozenset(
    {"flame_device", "flame_host", "section_times", "sections", "step_times", "sync_costs", "sync_sites"}
)


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    command = commands.add_parser(
        "analyze",
        help="figures and a page from any PyTorch (Kineto) traces",
        description="Read PyTorch profiler traces (.json or .json.gz; files or folders; one or more ranks) and write "
        "summary.json, tables/ and report.html. What an earlier call wrote to the same folder is replaced.",
    )
    command.add_argument("trace", nargs="+", help="trace file, or folder of trace files")
    command.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write to, made if missing")
    command.add_argument("--no-report", action="store_true", help="leave report.html out")
    command.add_argument(
        "--counters",
        action="store_true",
        help="also write counters/: each trace with tracks of queue length and memory bandwidth, for Perfetto",
    )
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Write the figures and the page, say in short what they hold, and return the exit code."""
    from steptrace.findings import with_trace_findings
    from steptrace.summary import summarize, write_counters, write_tables

    out: Path = arguments.out
    earlier = _earlier(out, page=not arguments.no_report)
    summary, analyses = summarize(arguments.trace)
    summary = with_trace_findings(summary)
    try:
        out.mkdir(parents=True, exist_ok=True)
        if earlier:
            _remove(out)
        write_tables(analyses, out / "tables")
        if arguments.counters:
            write_counters(analyses, out / "counters")
        text = msgspec.json.format(msgspec.json.encode(summary), indent=1)
        replace_atomically(out / "summary.json", lambda temporary: temporary.write_bytes(text))
    except OSError as error:
        raise SteptraceError(f"cannot be written ({error.strerror or error})", where=out) from error
    for warning in summary["warnings"]:
        print(f"steptrace: warning: {warning}", file=sys.stderr)  # noqa: T201
    for entry in summary["traces"]:
        for warning in entry["quality"]["warnings"]:
            print(f"{entry['path']}: warning: {warning}", file=sys.stderr)  # noqa: T201
    if not arguments.no_report:
        _write_page(summary, out / "report.html")
    print(out / "summary.json")  # noqa: T201
    return 0


def _write_page(summary: dict[str, object], out: Path) -> None:
    """Write the page, and say in short what it says. Imported only here: the figures need no plotting library."""
    if importlib.util.find_spec(_PAGE_MODULE) is None:
        print("steptrace: this build has no page for traces; summary.json is complete", file=sys.stderr)  # noqa: T201
        return
    module = importlib.import_module(_PAGE_MODULE)
    module.write(summary, out)
    print(module.in_words(summary))  # noqa: T201
    print(out)  # noqa: T201


def _earlier(out: Path, *, page: bool) -> bool:
    """Whether an earlier call wrote to the folder.

    Raises:
        SteptraceError: a file that would be replaced is not one of ours.
    """
    summary, report = out / "summary.json", out / "report.html"
    if summary.exists() and not _is_summary(summary):
        raise _foreign(summary)
    if page and report.exists() and not _is_page(report):
        raise _foreign(report)
    return summary.exists()


def _foreign(path: Path) -> SteptraceError:
    return SteptraceError(
        "a file that steptrace analyze did not make, and will not overwrite",
        where=path,
        next_step="name another folder as --out, or move the file away",
    )


def _is_summary(path: Path) -> bool:
    try:
        found: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and {"schema_version", "traces"} <= found.keys()


def _is_page(path: Path) -> bool:
    try:
        return _GENERATOR in path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return False


def _remove(out: Path) -> None:
    """Remove what an earlier call made and this one may not make again; what others put beside it stays."""
    names = _table_names()
    for folder in sorted((out / "tables").glob("*")):
        if folder.is_dir() and not folder.is_symlink() and _OF_A_TRACE.fullmatch(folder.name):
            for name in names:
                (folder / f"{name}.parquet").unlink(missing_ok=True)
            _remove_empty(folder)
    for file in sorted((out / "counters").glob("trace*.json.gz")):
        if _OF_A_TRACE.fullmatch(file.name):
            file.unlink()
    for folder in (out / "tables", out / "counters"):
        if folder.is_dir() and not folder.is_symlink():
            _remove_empty(folder)
    if _is_page(report := out / "report.html"):
        report.unlink()


def _table_names() -> set[str]:
    """What `write_tables` calls its files: the declared tables, and those that are made of a declared one."""
    modules = (
        importlib.import_module(found.name) for found in pkgutil.iter_modules(schema.__path__, "steptrace.schema.")
    )
    declared = {item.name for module in modules for item in vars(module).values() if isinstance(item, schema.Table)}
    return declared | _UNDECLARED


def _remove_empty(folder: Path) -> None:
    if not any(folder.iterdir()):
        folder.rmdir()
