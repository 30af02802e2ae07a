"""`python -m steptrace.command_reference > docs/reference/commands.md`: every command, argument and exit code."""

import argparse
from collections.abc import Iterator

from steptrace.cli import parser
from steptrace.exit_codes import ExitCode
from steptrace.markdown import table

_HEAD = """# Commands

Generated from the commands by `python -m steptrace.command_reference`; a test compares them.

`steptrace COMMAND --help` says the same in a terminal. Every command takes `--json`: it then prints one JSON value on
standard output and nothing else there. Warnings, errors and progress go to standard error. The value's schema is in
[schemas/commands](../schemas/commands). `run --capture` prints nothing itself: the output is the program's.

## Exit codes

{codes}
`snakemake --cores all` ends with 0, or with 1 if a run failed or a gate is broken.
"""


def commands() -> dict[str, argparse.ArgumentParser]:
    """The parser of every command, by name."""
    (commands,) = (action for action in parser()._actions if isinstance(action, argparse._SubParsersAction))
    return dict(commands.choices)


def render() -> str:
    """The page."""
    codes = table(("code", "meaning"), [(code.value, code.meaning) for code in ExitCode])
    return "\n".join(
        [
            _HEAD.replace("{codes}", codes),
            *(part for name, command in commands().items() for part in _described(name, command)),
        ]
    )


def _described(name: str, command: argparse.ArgumentParser) -> Iterator[str]:
    yield f"## steptrace {name}\n"
    yield f"{command.description}\n"
    arguments = [action for action in command._actions if not isinstance(action, argparse._HelpAction)]
    rows = [(_name(argument), (argument.help or "").replace("%%", "%")) for argument in arguments]
    yield table(("argument", "meaning"), rows)


def _name(argument: argparse.Action) -> str:
    value = str(argument.metavar or argument.dest.upper())
    if not argument.option_strings:
        value = f"{value} ..." if argument.nargs == "+" else value
        return f"`[{value}]`" if argument.nargs == "?" else f"`{value}`"
    value = "" if argument.nargs == 0 else f" {value}"
    return ", ".join(f"`{option}{value}`" for option in argument.option_strings)


if __name__ == "__main__":
    print(render(), end="")  # noqa: T201
