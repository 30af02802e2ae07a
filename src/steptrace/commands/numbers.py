"""Types of arguments that are numbers: a wrong one is refused in words, where argparse would name a function."""

import argparse
import contextlib
from functools import partial


def _whole(text: str, least: int) -> int:
    with contextlib.suppress(ValueError):
        if (value := int(text)) >= least:
            return value
    raise argparse.ArgumentTypeError(f"invalid number '{text}': expected a whole number >= {least}")


def _number(text: str, between: tuple[float, float], what: str, expected: str) -> float:
    with contextlib.suppress(ValueError):
        if between[0] < (value := float(text)) < between[1]:
            return value
    raise argparse.ArgumentTypeError(f"invalid {what} '{text}': expected {expected}")


positive = partial(_whole, least=1)
not_negative = partial(_whole, least=0)
#: How long something is waited for.
seconds = partial(_number, between=(0, 1e9), what="timeout", expected="seconds > 0")
