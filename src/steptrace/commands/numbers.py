"""The numbers that commands take, each refused in words: argparse would name the function that reads them."""

import argparse
import math


def positive(text: str) -> int:
    """Read a whole number of at least 1."""
    return _whole(text, 1)


def not_negative(text: str) -> int:
    """Read a whole number of at least 0."""
    return _whole(text, 0)


def seconds(text: str) -> float:
    """Read a time to wait: more than 0, and one that ends."""
    value = _number(text)
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"invalid timeout '{text}': expected seconds > 0")
    return value


def milliseconds(text: str) -> float:
    """Read a time in a trace."""
    value = _number(text)
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"invalid time '{text}': expected milliseconds")
    return value


def ratio(text: str) -> float:
    """Read how many times something may be."""
    value = _number(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"invalid ratio '{text}': expected a number > 0, such as 1.05")
    return value


def _whole(text: str, least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise argparse.ArgumentTypeError(f"invalid number '{text}': expected a whole number >= {least}")
    return value


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
