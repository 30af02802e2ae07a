"""The commands as data, of which the reference in docs/ and the completion of shells are made."""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Argument:
    """One argument; `options` is empty for a positional one, and `value` for a flag."""

    options: tuple[str, ...]
    value: str
    help: str
    choices: tuple[str, ...]


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
        found = tuple(_argument(a) for a in parser._actions if not isinstance(a, argparse._HelpAction))
        yield Command(" ".join(path), text, description, found)


def _argument(action: argparse.Action) -> Argument:
    takes_value = action.nargs != 0
    metavar = action.metavar or action.dest.upper()
    value = metavar if isinstance(metavar, str) else " ".join(metavar)
    if not action.option_strings:
        value = f"{value} ..." if action.nargs in ("+", "*", argparse.REMAINDER) else value
        value = f"[{value}]" if action.nargs in ("?", "*") else value
    choices = tuple(map(str, action.choices or ()))
    return Argument(
        tuple(action.option_strings), value if takes_value else "", (action.help or "").replace("%%", "%"), choices
    )
