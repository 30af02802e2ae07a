"""`python -m steptrace.command_reference > docs/reference/commands.md`: every command, argument and exit code."""

from collections.abc import Iterator

from steptrace.cli import parser
from steptrace.commands.completion import Argument, Command, commands
from steptrace.markdown import table

_HEAD = """# Commands

Made of the commands themselves by `python -m steptrace.command_reference`; a test compares them.

`steptrace COMMAND --help` says the same in a terminal. Every command takes `--json`: it then prints one JSON value on
standard output and nothing else there. Warnings, errors and progress go to standard error; progress and colours appear
on a terminal only (`NO_COLOR` and `TERM=dumb` are respected). A shell completes commands and options after
`eval "$(steptrace completion bash)"` (or `zsh`; for fish: `steptrace completion fish | source`).

## Exit codes

| code | meaning |
| --- | --- |
| 0 | done |
| 1 | done, and what was asked for does not hold: over budget, slower than allowed, nothing fits, no study can run |
| 2 | not done: bad input, or a file that cannot be read or written; a message on standard error says what to do |
| 130 | interrupted (Ctrl-C) |
| 141 | what reads its output has ended first, such as `head` |

`snakemake --cores all` ends with 0, or with 1 if a run failed or a gate is broken.
"""


def render() -> str:
    """The page."""
    return "\n".join([_HEAD, *(part for command in commands(parser()) for part in _described(command))])


def _described(command: Command) -> Iterator[str]:
    yield f"## steptrace {command.name}\n"
    yield f"{command.description or command.help}\n"
    yield table(("argument", "meaning"), [(_name(argument), argument.help) for argument in command.arguments])


def _name(argument: Argument) -> str:
    if not argument.options:
        return f"`{argument.value}`"
    value = f" {argument.value}" if argument.value else ""
    return ", ".join(f"`{option}{value}`" for option in argument.options)


if __name__ == "__main__":
    print(render(), end="")  # noqa: T201
