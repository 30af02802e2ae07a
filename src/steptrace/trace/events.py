"""Parses the loosely written values of Kineto's events: tools rewrite numbers as text, and some as `nan`."""

import math
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from steptrace.trace.bounds import LARGEST, LATEST_NS, MOST, plain_text, within

Ints = NDArray[np.int64]

#: Marks missing values in integer columns while reading; in tables they are null.
MISSING: Final = -(1 << 63)

_LATEST_US = Decimal(LATEST_NS) / 1000

#: Bytes of an element, by the types of inputs that the profiler writes for a label.
_INPUT_BYTES = {
    **dict.fromkeys(("bool", "unsigned char", "signed char", "c10::Float8_e4m3fn", "c10::Float8_e5m2"), 1),
    **dict.fromkeys(("short int", "c10::Half", "c10::BFloat16"), 2),
    **dict.fromkeys(("int", "float"), 4),
    **dict.fromkeys(("long int", "double", "c10::complex<float>"), 8),
}

#: The fields of a collective, and the names of PyTorch's arguments for them.
COLLECTIVE_ARGS: Final = {
    "name": "Collective name",
    "group": "Process Group Name",
    "group_ranks": "Process Group Ranks",
    "group_size": "Group size",
    "sequence": "Seq",
    "dtype": "dtype",
    "in_elements": "In msg nelems",
    "out_elements": "Out msg nelems",
}


class CollectiveArgs(NamedTuple):
    """PyTorch's description of a collective, on its kernel or on the operator around its launch; None: not given."""

    name: str | None
    group: str | None
    group_ranks: str | None
    group_size: int | None
    sequence: int | None
    dtype: str | None
    in_elements: int | None
    out_elements: int | None


def collective_args(args: dict[str, Any]) -> CollectiveArgs:
    """The arguments of a collective by name, with loosely written values parsed."""
    given = {field: args.get(name) for field, name in COLLECTIVE_ARGS.items()}
    texts = {
        field: None if (value := given[field]) is None else plain_text(str(value))
        for field in ("name", "group", "group_ranks", "dtype")
    }
    return CollectiveArgs(
        **texts,
        group_size=within(integer(given["group_size"]), 0, MOST),
        sequence=within(integer(given["sequence"]), -LARGEST, LARGEST),
        in_elements=within(integer(given["in_elements"]), 0, LARGEST),
        out_elements=within(integer(given["out_elements"]), 0, LARGEST),
    )


@lru_cache(maxsize=1 << 10)
def input_bytes(dims: str, types: str) -> int:
    """Bytes of tensors, from the JSON lists of their sizes and types; `MISSING` if these are incomplete."""
    try:
        sizes, names = msgspec.json.decode(dims, type=list[list[int]]), msgspec.json.decode(types, type=list[str])
        total = sum(math.prod(size) * _INPUT_BYTES[name] for size, name in zip(sizes, names, strict=True))
    except (ValueError, KeyError, RecursionError, msgspec.DecodeError):
        return MISSING
    return MISSING if within(total, 0, LARGEST) is None else total


def plain_list(text: bytes) -> str:
    """The JSON text of a list of types, or of sizes or strides, without spaces; `null` for anything else."""
    for kind in (list[list[int]], list[str | list[str]]):
        try:
            return msgspec.json.encode(msgspec.json.decode(text, type=kind)).decode()
        except (UnicodeDecodeError, msgspec.DecodeError, RecursionError):
            pass
    return "null"


def to_ns(us: Decimal) -> int:
    """Microseconds as integer ns; `MISSING` if it is not a number or beyond `LATEST_NS`."""
    return int((us * 1000).to_integral_value()) if us.is_finite() and -_LATEST_US < us < _LATEST_US else MISSING


def ns_to_us(ns: int) -> str:
    """Integer ns as the decimal microseconds of a trace file; a float would lose nanoseconds."""
    us, rest = divmod(abs(ns), 1000)
    return f"{'-' if ns < 0 else ''}{us}.{rest:03d}"


def integer(value: Any) -> int:
    """A loosely typed value as an integer; `MISSING` if it is not one or does not fit in int64."""
    try:
        number = int(value, 0) if isinstance(value, str) else int(value)
    except (TypeError, ValueError, OverflowError):
        return MISSING
    return number if -(1 << 63) <= number < 1 << 63 else MISSING
