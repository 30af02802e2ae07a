"""Whose an error is that is raised in code of ours: a signal handler of the program may have raised it."""

import signal
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from steptrace.engine.signals import is_of_signal_handler


class _Compose:
    """A handler that calls others, as some frameworks have it."""

    def __call__(self, number: int, _frame: object) -> None:
        raise SystemExit(number)

    def method(self, number: int, _frame: object) -> None:
        raise SystemExit(number)


def _function(_: str, number: int, _frame: object) -> None:
    raise SystemExit(number)


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = signal.getsignal(signal.SIGUSR1)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("handler", [_Compose(), _Compose().method, partial(_function, "job")])
def test_handlers_of_all_forms_are_known(handler: Callable[[int, Any], None]) -> None:
    signal.signal(signal.SIGUSR1, handler)
    with pytest.raises(SystemExit) as raised:
        signal.raise_signal(signal.SIGUSR1)
    assert is_of_signal_handler(raised.value)


def test_an_error_of_a_look_up_in_an_enumeration_is_of_no_handler() -> None:
    with pytest.raises(ValueError, match="99") as raised:
        signal.Handlers(99)
    assert not is_of_signal_handler(raised.value)
