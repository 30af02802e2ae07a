"""The command line: `steptrace analyze`, `diff`, `excerpt`, `predict`, `baseline`, `find-batch` and `capture`.

Any error addressed to a person becomes one message on stderr and exit code 2.
"""

import argparse
import errno
import importlib
import io
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from steptrace import __version__
from steptrace.commands import analyze, baseline, capture, excerpt, find_batch, predict
from steptrace.errors import SteptraceError
from steptrace.files import replace_atomically

EXIT_ERROR = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0, 1 if what was asked for does not hold, 2 with a message on stderr."""
    for out in (sys.stdout, sys.stderr):
        if isinstance(out, io.TextIOWrapper):
            out.reconfigure(errors="backslashreplace")  # a file's name need not be UTF-8
    arguments = _parser().parse_args(argv)
    try:
        run: Callable[[argparse.Namespace], int] = arguments.run
        code = run(arguments)
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except SteptraceError as error:
        print(f"steptrace: error: {error}", file=sys.stderr)  # noqa: T201
        return EXIT_ERROR
    except OSError as error:
        if not _concerns_stdout(error):
            raise
        # What is left in the buffer would be tried again, and fail again, at the exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"steptrace: error: standard output cannot be written ({error.strerror})", file=sys.stderr)  # noqa: T201
        return EXIT_ERROR


def _concerns_stdout(error: OSError) -> bool:
    """Whether printing failed: commands turn errors about files, which have names, into messages themselves."""
    return error.filename is None and error.errno in (errno.EPIPE, errno.ENOSPC, errno.EBADF, errno.EIO)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="steptrace", description="Training-step performance from traces: what the GPU waited for, and which line."
    )
    parser.add_argument("--version", action="version", version=f"steptrace {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for add in _COMMANDS:
        add(commands)
    return parser


def _add_diff(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    command = commands.add_parser(
        "diff",
        help="what changed from one trace, or set of ranks, to another",
        description="Compare two PyTorch profiler traces, or two folders of ranks, per step: operators, kernels, syncs "
        "and lines that were added, removed, or got slower or faster. Writes diff.json and diff.html.",
    )
    command.add_argument("a", help="trace file, or folder of one job's ranks: what to compare with")
    command.add_argument("b", help="trace file, or folder of one job's ranks: what is compared")
    command.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write to, made if missing")
    command.add_argument("--no-report", action="store_true", help="leave diff.html out")
    command.set_defaults(run=_diff)


def _diff(arguments: argparse.Namespace) -> int:
    from steptrace.diff import diff, in_words, read_sides

    found = diff(*read_sides([arguments.a], [arguments.b]))
    out: Path = arguments.out
    try:
        out.mkdir(parents=True, exist_ok=True)
        text = msgspec.json.format(msgspec.json.encode(found), indent=1)
        replace_atomically(out / "diff.json", lambda temporary: temporary.write_bytes(text))
    except OSError as error:
        raise SteptraceError(f"cannot be written ({error.strerror or error})", where=out) from error
    if not arguments.no_report:
        importlib.import_module("steptrace.report.diff_page").write(found, out / "diff.html")
    print(in_words(found))  # noqa: T201
    print(out / ("diff.json" if arguments.no_report else "diff.html"))  # noqa: T201
    return 0


#: What adds each command to the parser, in the order of the help text.
_COMMANDS: tuple[Callable[["argparse._SubParsersAction[argparse.ArgumentParser]"], None], ...] = (
    analyze.add,
    _add_diff,
    excerpt.add,
    predict.add,
    baseline.add,
    find_batch.add,
    capture.add,
)


if __name__ == "__main__":
    sys.exit(main())
