"""Runs one training as a child and always says how it ended, so that one failure stops nothing else.

    python -m steptrace.train.supervise --out DIR --attempt N [--device cpu|cuda] -- COMMAND...

The child's output goes to DIR/train.log (or what `--log` names), its progress lines to stderr. When it ends, in
whatever way, DIR/status.json says how (`steptrace.record.Status`) and the exit code is 0: what a failure means for the
whole is decided once, after the reports are written. Only if the supervisor itself is told to stop, or whoever started
it is gone, does it kill the child with all its processes and leave no status; the run then counts as not begun. What
it does is `steptrace.train.attempt`.

A workflow starts this for each of its runs, and mostly to wait for a fork: it imports little before it asks for one.
"""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from steptrace.train.fork_client import ask, is_program
from steptrace.train.lifetime import StopError, die_with, handling


def main(arguments: Sequence[str] | None = None, *, server: int | None = None) -> int:
    """Run the command line; return 0 whenever a status was written.

    Args:
        arguments: the command line; None for this process's.
        server: the fork server that this process is forked from, its parent.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    order = _parse(arguments)
    parent, name = order.pop("parent"), order.pop("server")
    try:
        with handling(dict.fromkeys((signal.SIGTERM, signal.SIGINT, signal.SIGHUP), _stop)):
            die_with(server or parent, signal.SIGTERM)
            if name and server is None and is_program(order["command"]):
                code = ask(name, parent, arguments)
                if code is not None:
                    return code
            from steptrace.train.attempt import Order, supervise

            supervise(Order(**order), parent=server or parent)
    except StopError as stopped:
        return int(stopped.args[0])
    return 0


def _stop(number: int, _frame: FrameType | None) -> None:
    raise StopError(128 + number)


def _parse(arguments: Sequence[str]) -> dict[str, Any]:
    parser = argparse.ArgumentParser(prog="python -m steptrace.train.supervise", description="Supervise one training.")
    parser.add_argument("--out", type=Path, required=True, help="folder of the run")
    parser.add_argument("--attempt", type=int, required=True, help="number of this attempt, from 1")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="take one such device for as long as the child runs")
    parser.add_argument("--devices", type=int, default=1, help="take that many GPUs")
    parser.add_argument("--expect", action="append", default=[], help="a file a good run leaves in its folder")
    parser.add_argument(
        "--timeout", type=float, dest="timeout_s", help="seconds after which the child is stopped; 0: never"
    )
    parser.add_argument("--failures", type=Path, help="file that gets a line for every failure")
    parser.add_argument(
        "--key",
        default="",
        help="digest of the run: failures are noted under it, and a good result of it is taken instead of a new run",
    )
    parser.add_argument("--label", default="", help="what to call the run in progress lines")
    parser.add_argument("--log", default="train.log", help="file in the folder that gets the child's output")
    parser.add_argument("--show-log", action="store_true", help="if it fails, all of its output to stderr")
    parser.add_argument(
        "--parent", type=int, default=os.getppid(), help="process to live no longer than; without it the one found now"
    )
    parser.add_argument("--server", default="", help="be forked from the server of that name, where that can be")
    parser.add_argument("command", nargs="+", help="the training, after --")
    options = vars(parser.parse_args(arguments))
    return {**options, "label": options["label"] or options["out"].name}


if __name__ == "__main__":
    sys.exit(main())
