"""Types of arguments that several commands have: a wrong number is refused in words."""

import argparse
import contextlib
from functools import partial


def _whole(text: str, least: int) -> int:
    with contextlib.suppress(ValueError):
        if (value := int(text)) >= least:
            return value
    raise argparse.ArgumentTypeError(f"invalid number '{text}': expected a whole number >= {least}")


positive = partial(_whole, least=1)
not_negative = partial(_whole, least=0)


def gpu_names(text: str) -> tuple[str, ...]:
    """The value of `--gpu`."""
    names = tuple(filter(None, (name.strip() for name in text.split(","))))
    if not names:
        raise argparse.ArgumentTypeError(f"invalid value '{text}': expected names of GPUs, such as H100,L4")
    return names


def batches(text: str) -> tuple[int, ...]:
    """The value of `--batch`, ascending: the last is the largest."""
    return tuple(sorted({positive(number.strip()) for number in text.split(",")}))
