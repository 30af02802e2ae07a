"""What a terminal shows: colour where there is one and nobody asks to do without, and a line of progress that goes."""

import argparse
import io
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout

import pytest

from steptrace.commands import console
from steptrace.commands.console import end_status, show, status
from steptrace.words.lines import TextLine

LINES = [TextLine("answer", "answer"), "plain", TextLine("first", "first")]
SHOWN = argparse.Namespace(json=False)


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


@contextmanager
def terminal() -> Iterator[Terminal]:
    """Both outputs are a terminal; not as a fixture, since pytest sets its own between set-up and test."""
    stream = Terminal()
    with redirect_stdout(stream), redirect_stderr(stream):
        yield stream


@pytest.fixture(autouse=True)
def colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")


def test_a_terminal_shows_the_answer_and_what_to_do_in_colour() -> None:
    with terminal() as shown:
        show(SHOWN, {}, LINES)
    answer, plain, first = shown.getvalue().splitlines()
    assert plain == "plain"
    assert all(line.startswith("\x1b[") and line.endswith("\x1b[0m") for line in (answer, first))


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_without_colour_where_that_is_asked_for(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with terminal() as shown:
        show(SHOWN, {}, LINES)
    assert shown.getvalue() == "answer\nplain\nfirst\n"


def test_a_file_gets_plain_text_and_json_no_lines(capsys: pytest.CaptureFixture[str]) -> None:
    show(SHOWN, {}, LINES)
    assert capsys.readouterr().out == "answer\nplain\nfirst\n"
    show(argparse.Namespace(json=True), {"a": 1}, LINES)
    assert capsys.readouterr().out == '{\n  "a": 1\n}\n'


def test_what_is_in_a_line_cannot_move_the_terminals_cursor() -> None:
    with terminal() as shown:
        show(SHOWN, {}, [TextLine("a\x1b[2Jb", "answer")])
    assert "\x1b[2J" not in shown.getvalue()


def test_a_line_of_progress_is_taken_away_before_anything_else_is_said() -> None:
    with terminal() as shown:
        status("reading")
        assert shown.getvalue().endswith("steptrace: reading")
        console.warn("careful")
        assert shown.getvalue().endswith("\r\x1b[2Ksteptrace: warning: careful\n")
        end_status()
    assert shown.getvalue().endswith("careful\n")


def test_elsewhere_there_is_no_line_of_progress(capsys: pytest.CaptureFixture[str]) -> None:
    status("reading")
    end_status()
    assert capsys.readouterr().err == ""
