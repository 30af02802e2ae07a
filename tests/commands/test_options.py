"""The numbers of all commands are refused in words, and the program says which it is."""

import pytest

import steptrace
from steptrace.cli import main


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["capture", "abc"], "argument PID: invalid number 'abc': expected a whole number >= 1"),
        (["capture", "0"], "argument PID: invalid number '0': expected a whole number >= 1"),
        (["capture", "1", "--warmup", "-1"], "invalid number '-1': expected a whole number >= 0"),
        (["predict", "s", "--budget", "few"], "invalid number 'few': expected a whole number >= 0"),
    ],
)
def test_a_number_that_is_none(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--version"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out == f"steptrace {steptrace.__version__}\n"
