"""What others have written commands no terminal."""

import argparse

import pytest

from steptrace.commands.console import show, warn
from steptrace.format import printable


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
