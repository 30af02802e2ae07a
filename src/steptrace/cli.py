"""The command line of steptrace.

Each command is a module of `steptrace.commands`, imported when it is called: the list of commands is shown at once. Its
`add` adds arguments; its `run` returns the exit code.
Any error addressed to a person becomes one message on stderr and exit code 2. docs/reference/commands.md lists all exit
codes.
"""

import argparse
import importlib
import io
import shlex
import sys
from collections.abc import Callable, Sequence
from typing import Final

from steptrace.errors import SteptraceError, code_of, keep_standard_error
from steptrace.extras import with_extra
from steptrace.format import printable
from steptrace.version import VERSION

#: Every command with its line in the list of commands.
_COMMANDS: Final = {
    "run": "start any training program, unchanged, and measure its steps",
    "init": "a folder for studies of your own, which `snakemake --cores all` runs",
    "analyze": "figures and a page from any PyTorch (Kineto) traces",
    "diff": "what changed from one trace, or set of ranks, to another",
    "compare": "one study's results from several machines, versions or dates",
    "predict": "the syncs of a training step on CUDA, without a GPU",
    "capture": "a trace of the next steps of a training that is already running",
    "doctor": "what this machine can measure, what is missing, and the studies of this folder",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0, 1 if something does not hold, 2 with a message on stderr."""
    keep_standard_error()
    for out in (sys.stdout, sys.stderr):
        if isinstance(out, io.TextIOWrapper):
            out.reconfigure(errors="backslashreplace")  # a file's name need not be UTF-8
    words = sys.argv[1:] if argv is None else list(argv)
    return code_of(lambda: _run(words), say=_say_error)


def _run(words: Sequence[str]) -> int:
    try:
        parse = parser(words)
        arguments, unknown = parse.parse_known_args(words, argparse.Namespace(command_line=words))
        if (problem := _unclear(words, arguments, unknown)) is not None:
            parse.error(problem)
        run: Callable[[argparse.Namespace], int] = arguments.run
        return run(arguments)
    except ModuleNotFoundError as error:
        advice = with_extra(error)
        if advice is None:
            raise
        raise SteptraceError(
            f"the package {error.name} is not installed, and this command needs it",
            next_step=f"{advice}, or use an environment that has it",
        ) from error


def _unclear(words: Sequence[str], arguments: argparse.Namespace, unknown: Sequence[str]) -> str | None:
    """Options that a command does not have, or that stand after a program without `--` before it; else None."""
    text = f"unrecognized arguments: {' '.join(unknown)}" if unknown else None
    program = getattr(arguments, "program", None) or getattr(arguments, "target", None)
    if program is None or "--" in words:
        return text
    begin = words.index(program[0])
    if text is None and (len(program) == 1 or not any(word.startswith("-") for word in words[begin:])):
        return None
    whole = shlex.join([*words[:begin], "--", *words[begin:]])
    return f"{text or 'options after a program may be its own'}\n  next: put -- before the program: steptrace {whole}"


def _say_error(text: str) -> None:
    print(f"steptrace: error: {printable(text)}", file=sys.stderr)  # noqa: T201


def parser(words: Sequence[str] | None = None) -> argparse.ArgumentParser:
    """The parser of these arguments: every command, with the arguments of the one that is called; of all if None."""
    steptrace = argparse.ArgumentParser(
        prog="steptrace", description="Training-step performance from traces: what the GPU waited for, and which line."
    )
    steptrace.add_argument("--version", action="version", version=f"steptrace {VERSION}")
    commands = steptrace.add_subparsers(title="commands", required=True, metavar="COMMAND")
    called = None if words is None else next((argument for argument in words if not argument.startswith("-")), None)
    for name, text in _COMMANDS.items():
        command = commands.add_parser(name, help=text, allow_abbrev=False)
        if words is None or name == called:
            module = importlib.import_module(f"steptrace.commands.{name}")
            module.add(command)
            command.add_argument("--json", action="store_true", help="print JSON on standard output, and nothing else")
            command.set_defaults(run=module.run)
    return steptrace


if __name__ == "__main__":
    sys.exit(main())
