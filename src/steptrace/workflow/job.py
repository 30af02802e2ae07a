"""Runs a script of the workflow, and records the files that it has written.

    python -m steptrace.workflow.job TASK --log FILE -- SCRIPT.py|MODULE ARGUMENTS...

TASK is the task's name in the plan (`steptrace.tasks.Task`). The script's output is printed and written to the log. If
Snakemake is killed, this process ends too, so that it cannot write at the same time as the jobs of the next call.
"""

import argparse
import contextlib
import os
import runpy
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from steptrace.exit_codes import ExitCode
from steptrace.processes import die_with, require_workflow
from steptrace.tasks import read_task
from steptrace.workflow.made import write_record


class _Both:
    """A stream that writes to a stream and to a log."""

    def __init__(self, stream: TextIO, log: TextIO) -> None:
        self._stream = stream
        self._log = log

    def write(self, text: str) -> int:
        """Write to both. Errors of the log, such as a full disk, are ignored."""
        with contextlib.suppress(OSError):
            self._log.write(text)
        return self._stream.write(text)

    def flush(self) -> None:
        """Flush both."""
        with contextlib.suppress(OSError):
            self._log.flush()
        self._stream.flush()

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    require_workflow()
    die_with(os.getppid())
    parser = argparse.ArgumentParser(description="Run a script of the workflow and record what it has made.")
    parser.add_argument("task")
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("command", nargs="+", help="a script or module with its arguments, after --")
    options = parser.parse_args(arguments)
    options.log.parent.mkdir(parents=True, exist_ok=True)
    with options.log.open("w", buffering=1, encoding="utf-8", errors="replace") as log:
        sys.stdout = _Both(sys.stdout, log)
        sys.stderr = _Both(sys.stderr, log)
        try:
            code = _run(options.command)
            if code == 0:
                write_record(read_task(options.task))
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            sys.stdout = sys.__stdout__
            sys.stderr = sys.__stderr__
    return code


def _run(command: Sequence[str]) -> int:
    """Run a script or module as the main program; return its exit code."""
    sys.argv = list(command)
    try:
        if command[0].endswith(".py"):
            sys.path[0] = str(Path(command[0]).parent)
            runpy.run_path(command[0], run_name="__main__")
        else:
            runpy.run_module(command[0], run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        if isinstance(ended.code, int | None):
            return ended.code or 0
        sys.stderr.write(f"{ended.code}\n")
        return 1
    except KeyboardInterrupt:  # while the script still imports
        sys.stderr.write("error: interrupted\n")
        return ExitCode.INTERRUPTED
    except Exception:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
