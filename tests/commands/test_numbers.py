"""The numbers of all commands are refused in words, and the program says which it is."""

import pytest

import steptrace
from steptrace.cli import main


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["capture", "abc"], "argument PID: 'abc' is no whole number of at least 1"),
        (["capture", "0"], "argument PID: '0' is no whole number of at least 1"),
        (["capture", "1", "--warmup", "-1"], "'-1' is no whole number of at least 0"),
        (["capture", "1", "--timeout", "soon"], "'soon' is no time to wait: a number of seconds above 0"),
        (["excerpt", "t.json", "--out", "o", "--from", "x"], "'x' is no time: a number of milliseconds"),
        (["excerpt", "t.json", "--out", "o", "--max-bytes", "1e6"], "'1e6' is no whole number"),
        (["predict", "s", "--budget", "few"], "'few' is no whole number of at least 0"),
        (["find-batch", "s", "--within", "0"], "'0' is no whole number of at least 1"),
        (["baseline", "compare", "ci", "--max-ratio", "x"], "'x' is no ratio: a number above 0 is expected"),
    ],
)
def test_a_number_that_is_none(arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert told in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--version"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out == f"steptrace {steptrace.__version__}\n"
