"""`steptrace excerpt`: a few milliseconds of a trace as a small trace of its own."""

import argparse
from dataclasses import asdict
from pathlib import Path

from steptrace.commands.numbers import milliseconds, positive
from steptrace.commands.output import progress, show, writing_to
from steptrace.trace.excerpt import MAX_BYTES, Excerpt, Wanted, write_excerpt


def add(command: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    command.description = (
        "Cut one step, or a time, out of a PyTorch profiler trace (.json or .json.gz, any size). The "
        "excerpt opens in Perfetto, TensorBoard (if its name ends in .pt.trace.json.gz) and Holistic Trace Analysis, "
        "and `steptrace analyze` reads it. Where it would be too large, Python frames are left out, then memory "
        "events; then it is shortened."
    )
    command.add_argument("trace", type=Path, help="trace file")
    command.add_argument("--out", type=Path, required=True, metavar="FILE.json.gz", help="file to write")
    command.add_argument("--step", type=int, metavar="N", help="the step ProfilerStep#N; default: the median step")
    command.add_argument(
        "--from", dest="from_ms", type=milliseconds, metavar="MS", help="ms since the trace's first event"
    )
    command.add_argument("--to", dest="to_ms", type=milliseconds, metavar="MS", help="ms since the trace's first event")
    command.add_argument(
        "--max-bytes",
        type=positive,
        default=MAX_BYTES,
        metavar="N",
        help=f"largest file to write; default: {MAX_BYTES}",
    )
    command.add_argument("--no-stacks", action="store_true", help="leave Python frames out")


def run(arguments: argparse.Namespace) -> int:
    """Write the excerpt, say what it is, and return the exit code."""
    wanted = Wanted(
        step=arguments.step,
        from_ms=arguments.from_ms,
        to_ms=arguments.to_ms,
        max_bytes=arguments.max_bytes,
        stacks=not arguments.no_stacks,
    )
    with writing_to(arguments.out), progress() as line:
        line.say(f"reading {arguments.trace}")
        made = write_excerpt(arguments.trace, arguments.out, wanted)
    show(arguments, asdict(made), _described(made))
    return 0


def _described(made: Excerpt) -> str:
    start, end = (time / 1e6 for time in made.span_ns)
    what = "" if made.step is None else f"step {made.step}, " if made.whole else f"part of step {made.step}, "
    notes = [f"without {' and '.join(made.left_out)}"] if made.left_out else []
    notes += [] if made.whole else ["shortened to fit"]
    facts = f"{start:.3f} to {end:.3f} ms, {made.events:,} events, {made.size:,} bytes"
    return "; ".join([f"{made.path}: {what}{facts}", *notes])
