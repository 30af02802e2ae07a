"""The numbers that commands take, each refused in words: argparse would name the function that reads them."""

import argparse
import contextlib
import math


def positive(text: str) -> int:
    """Read a whole number of at least 1."""
    return _whole(text, 1)


def not_negative(text: str) -> int:
    """Read a whole number of at least 0."""
    return _whole(text, 0)


def seconds(text: str) -> float:
    """Read a time to wait: more than 0, and one that ends."""
    return _number(text, (0, 1e9), "timeout", "seconds > 0")


def milliseconds(text: str) -> float:
    """Read a time in a trace."""
    return _number(text, (-math.inf, math.inf), "time", "milliseconds")


def ratio(text: str) -> float:
    """Read how many times something may be."""
    return _number(text, (0, math.inf), "ratio", "a number > 0, such as 1.05")


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
