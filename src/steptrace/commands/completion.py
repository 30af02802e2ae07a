"""`steptrace completion`: a script that completes commands and options in bash, zsh or fish.

And the commands as data, of which that and the reference in docs/ are made.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from steptrace.commands.output import show


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


_INSTALL: Final = {
    "bash": 'eval "$(steptrace completion bash)"    # in ~/.bashrc',
    "zsh": 'eval "$(steptrace completion zsh)"     # in ~/.zshrc',
    "fish": "steptrace completion fish | source      # in ~/.config/fish/config.fish",
}
#: Commands whose first argument may be a study of this folder.
_TAKE_STUDY: Final = ("predict", "find-batch")
_BASH: Final = """\
_steptrace() {
    local word="${COMP_WORDS[COMP_CWORD]}" name="${COMP_WORDS[1]}" words=""
    [ "$COMP_CWORD" -gt 2 ] && name="$name ${COMP_WORDS[2]}"
    case "$name" in
%s    esac
    [ "$COMP_CWORD" -eq 1 ] && words="%s"
    COMPREPLY=($(compgen -W "$words" -- "$word"))
    case "$word" in
        -*) ;;
        *) [ "$COMP_CWORD" -gt 1 ] && [ ${#COMPREPLY[@]} -eq 0 ] && COMPREPLY=($(compgen -f -- "$word")) ;;
    esac
}
complete -o filenames -F _steptrace steptrace
"""
_STUDIES: Final = "$(cd config/study 2>/dev/null && printf '%s ' *.yaml | sed 's/\\.yaml//g')"


def add(command: argparse.ArgumentParser) -> None:
    """Add the command's argument."""
    command.description = f"Print a completion script. {'; '.join(_INSTALL.values())}"
    command.add_argument("shell", choices=list(_INSTALL), metavar="SHELL", help="bash, zsh or fish")


def run(arguments: argparse.Namespace) -> int:
    """Print the script."""
    found = list(commands(arguments.every_command()))
    script = _fish(found) if arguments.shell == "fish" else _bash(found)
    if arguments.shell == "zsh":
        script = f"autoload -U +X bashcompinit && bashcompinit\n{script}"
    show(arguments, {"shell": arguments.shell, "script": script}, script)
    return 0


def _bash(found: Sequence[Command]) -> str:
    cases = []
    for command in found:
        words = " ".join(_options(command))
        studies = f" {_STUDIES}" if command.name in _TAKE_STUDY else ""
        pattern = f'"{command.name}"' if " " in command.name else f'"{command.name}"|"{command.name} "*'
        cases.append(f'    {pattern}) words="{words}{studies}" ;;\n')
    for first, seconds in _nested(found).items():
        cases.append(f'    "{first}") words="{" ".join(seconds)}" ;;\n')
    return _BASH % ("".join(cases), " ".join(dict.fromkeys(command.name.split()[0] for command in found)))


def _fish(found: Sequence[Command]) -> str:
    lines = ["complete -c steptrace -f -n __fish_use_subcommand"]
    for command in found:
        first, *second = command.name.split()
        seen = f"__fish_seen_subcommand_from {first}"
        if second:
            lines.append(f"complete -c steptrace -f -n '{seen}' -a {second[0]} -d {_quoted(command.help)}")
            seen += f"; and __fish_seen_subcommand_from {second[0]}"
        else:
            lines.append(f"complete -c steptrace -n __fish_use_subcommand -a {first} -d {_quoted(command.help)}")
        for argument in command.arguments:
            for option in argument.options:
                takes = " -r" if argument.value else ""
                name = f"-l {option[2:]}" if option.startswith("--") else f"-s {option[1:]}"
                lines.append(f"complete -c steptrace -n '{seen}' {name}{takes} -d {_quoted(argument.help)}")
    lines += [f"complete -c steptrace -n __fish_use_subcommand -a {first}" for first in _nested(found)]
    return "\n".join(lines)


def _nested(found: Sequence[Command]) -> dict[str, list[str]]:
    nested: dict[str, list[str]] = {}
    for command in found:
        first, _, second = command.name.partition(" ")
        if second:
            nested.setdefault(first, []).append(second)
    return nested


def _options(command: Command) -> list[str]:
    flags = [option for argument in command.arguments for option in argument.options]
    return [*flags, *(choice for argument in command.arguments if not argument.options for choice in argument.choices)]


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
