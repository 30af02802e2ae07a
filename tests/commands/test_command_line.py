"""What all commands share: `--json`, exit codes, numbers of options, text of others on a terminal; the reference."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from steptrace import cli, command_reference
from steptrace.cli import main
from steptrace.command_reference import commands
from steptrace.commands import doctor
from steptrace.commands.console import show, warn
from steptrace.errors import SteptraceError
from steptrace.format import printable

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", commands())
def test_every_command_takes_json_and_describes_its_arguments(name: str) -> None:
    command = commands()[name]
    assert "--json" in command.format_help()
    assert command.description
    assert all(argument.help for argument in command._actions)


def test_the_reference_is_made_of_the_commands() -> None:
    path = ROOT / "docs" / "reference" / "commands.md"
    again = "python -m steptrace.command_reference > docs/reference/commands.md"
    assert path.read_text(encoding="utf-8") == command_reference.render(), f"make it again: {again}"


def _ends(monkeypatch: pytest.MonkeyPatch, run: Callable[[Any], int]) -> int:
    monkeypatch.setattr(doctor, "run", run)
    return cli.main(["doctor"])


def test_exit_codes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(_: Any) -> int:
        raise KeyboardInterrupt

    def refused(_: Any) -> int:
        raise SteptraceError("no", where="file", next_step="do that")

    assert _ends(monkeypatch, lambda _: 0) == 0
    assert _ends(monkeypatch, lambda _: 1) == 1
    assert capsys.readouterr().err == ""
    assert _ends(monkeypatch, refused) == 2
    assert capsys.readouterr().err == "steptrace: error: file: no\n  next: do that\n"
    assert _ends(monkeypatch, interrupted) == 130
    assert capsys.readouterr().err == "steptrace: error: interrupted\n"
    with pytest.raises(SystemExit) as ended:
        cli.main(["no-such-command"])
    assert ended.value.code == 2


@pytest.mark.parametrize("words", ["compare L L", "init L", "analyze L --out o", "run --out L -- true"])
def test_a_name_that_is_too_long_is_a_message(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    long = "x" * 300
    assert cli.main([long if word == "L" else word for word in words.split()]) == 2
    message = capsys.readouterr().err
    assert message.startswith("steptrace: error: ")
    assert long in message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["capture", "abc"], "argument PID: invalid number 'abc': expected a whole number >= 1"),
        (["capture", "0"], "argument PID: invalid number '0': expected a whole number >= 1"),
        (["capture", "1", "--warmup", "-1"], "invalid number '-1': expected a whole number >= 0"),
        (["predict", "s", "--budget", "few"], "invalid number 'few': expected a whole number >= 0"),
        (["predict", "s", "--budget", "-1"], "invalid number '-1': expected a whole number >= 0"),
        (["predict", "s", "--batch", "0"], "invalid number '0': expected a whole number >= 1"),
        (["predict", "s", "--batch", "2,two"], "invalid number 'two': expected a whole number >= 1"),
    ],
)
def test_a_number_that_is_none(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain\ttext\nin lines, naïve 日本", "plain\ttext\nin lines, naïve 日本"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("\x1b[8mhidden", "\\x1b[8mhidden"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("\x9b2J\x7f", "\\x9b2J\\x7f"),
        ("all good\rerror", "all good\\rerror"),
        ("file\u202egpj.py", "file\\u202egpj.py"),
    ],
)
def test_characters_that_command_are_written_out(text, shown, capsys):
    assert printable(text) == shown
    show(argparse.Namespace(json=False), None, text)
    warn(text)
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == (f"{shown}\n", f"steptrace: warning: {shown}\n")


def test_json_holds_no_such_character_either(capsys):
    show(argparse.Namespace(json=True), {"name": "\x1b]0;x\x07\u202e"}, "")
    assert not set("\x1b\x07\u202e") & set(capsys.readouterr().out)
