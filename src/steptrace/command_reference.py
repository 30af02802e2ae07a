"""`python -m steptrace.command_reference > docs/reference/commands.md`: every command, argument and exit code."""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from steptrace.cli import parser
from steptrace.markdown import table

_HEAD = """# Commands

Made of the commands themselves by `python -m steptrace.command_reference`; a test compares them.

`steptrace COMMAND --help` says the same in a terminal. Every command takes `--json`: it then prints one JSON value on
standard output and nothing else there. Warnings, errors and progress go to standard error; progress and colours appear
on a terminal only (`NO_COLOR` and `TERM=dumb` are respected).

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


@dataclass(frozen=True)
class Argument:
    """One argument; `options` is empty for a positional one, and `value` for a flag."""

    options: tuple[str, ...]
    value: str
    help: str


@dataclass(frozen=True)
class Command:
    """One command without sub-commands, by its full name such as `baseline save`."""

    name: str
    help: str
    description: str
    arguments: tuple[Argument, ...]


def commands(parser: argparse.ArgumentParser) -> Iterator[Command]:
    """Every command of a parser made by `steptrace.cli.parser()`."""
    yield from _below(parser, [], "", "")


def _below(parser: argparse.ArgumentParser, path: Sequence[str], text: str, above: str) -> Iterator[Command]:
    description = " ".join(filter(None, (above, parser.description)))
    nested = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    for action in nested:
        texts = {choice.dest: choice.help or "" for choice in action._choices_actions}
        for name, sub in action.choices.items():
            yield from _below(sub, [*path, name], texts.get(name, ""), description if path else "")
    if not nested:
        arguments = tuple(_argument(a) for a in parser._actions if not isinstance(a, argparse._HelpAction))
        yield Command(" ".join(path), text, description, arguments)


def _argument(action: argparse.Action) -> Argument:
    takes_value = action.nargs != 0
    metavar = action.metavar or action.dest.upper()
    value = metavar if isinstance(metavar, str) else " ".join(metavar)
    if not action.option_strings:
        value = f"{value} ..." if action.nargs in ("+", "*", argparse.REMAINDER) else value
        value = f"[{value}]" if action.nargs in ("?", "*") else value
    return Argument(tuple(action.option_strings), value if takes_value else "", (action.help or "").replace("%%", "%"))


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
