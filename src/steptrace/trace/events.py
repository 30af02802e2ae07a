"""What of a Kineto event is kept, and how its loosely written values become columns.

Kineto writes times as decimal microseconds; they become integer nanoseconds without passing through a float that could
not hold them. Tools rewrite numbers as text, and some numbers as `nan`.
"""

import math
from collections.abc import Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from steptrace.trace.bounds import LARGEST, LATEST_NS, MOST, plain_text, within

Ints = NDArray[np.int64]

#: Stands for "not given" in integer columns while reading; the tables carry null.
MISSING = -(1 << 63)

#: From here a float64 of microseconds no longer tells nanoseconds apart.
FLOAT_LIMIT_US = float(1 << 43)

#: Kineto's times count from 1970 or from the machine's start: real ones lie beyond the first ten seconds.
FAR_FROM_ZERO_NS = 10_000_000_000


_NULL = msgspec.Raw(b"null")

#: Bytes of an element, by the types of inputs that the profiler writes for a label.
_INPUT_BYTES = {
    **dict.fromkeys(("bool", "unsigned char", "signed char", "c10::Float8_e4m3fn", "c10::Float8_e5m2"), 1),
    **dict.fromkeys(("short int", "c10::Half", "c10::BFloat16"), 2),
    **dict.fromkeys(("int", "float"), 4),
    **dict.fromkeys(("long int", "double", "c10::complex<float>"), 8),
}


class Args(msgspec.Struct, gc=False):
    """The arguments of an event that anything here uses. Tools write some of them as text."""

    external_id: Any = msgspec.field(name="External id", default=MISSING)
    sequence: Any = msgspec.field(name="Sequence number", default=MISSING)
    forward_thread: Any = msgspec.field(name="Fwd thread id", default=MISSING)
    python_id: Any = msgspec.field(name="Python id", default=MISSING)
    # Undecoded: every operator has them. Only labels of collectives are asked for the first; the second are few texts.
    input_dims: msgspec.Raw = msgspec.field(name="Input Dims", default=_NULL)
    input_types: msgspec.Raw = msgspec.field(name="Input type", default=_NULL)
    correlation: Any = MISSING
    kind: Any = MISSING
    device: Any = MISSING
    stream: Any = MISSING
    bytes: Any = MISSING
    blocks_per_sm: Any = msgspec.field(name="blocks per SM", default=None)
    grid: Any = None
    name: Any = None
    device_type: Any = msgspec.field(name="Device Type", default=MISSING)
    device_id: Any = msgspec.field(name="Device Id", default=MISSING)
    address: Any = msgspec.field(name="Addr", default=MISSING)
    size: Any = msgspec.field(name="Bytes", default=MISSING)
    allocated: Any = msgspec.field(name="Total Allocated", default=MISSING)
    reserved: Any = msgspec.field(name="Total Reserved", default=MISSING)
    collective: Any = msgspec.field(name="Collective name", default=None)
    group: Any = msgspec.field(name="Process Group Name", default=None)
    group_ranks: Any = msgspec.field(name="Process Group Ranks", default=None)
    group_size: Any = msgspec.field(name="Group size", default=None)
    collective_sequence: Any = msgspec.field(name="Seq", default=None)
    dtype: Any = None
    in_elements: Any = msgspec.field(name="In msg nelems", default=None)
    out_elements: Any = msgspec.field(name="Out msg nelems", default=None)


NO_ARGS = Args()


class CollectiveArgs(NamedTuple):
    """What PyTorch says of a collective, on its kernel or on the operator around its launch. None: not said."""

    name: str | None
    group: str | None
    group_ranks: str | None
    group_size: int | None
    sequence: int | None
    dtype: str | None
    in_elements: int | None
    out_elements: int | None


def collective_args(args: Args) -> CollectiveArgs:
    """The arguments of a collective, the loosely written ones among them as what they mean."""
    given = (args.collective, args.group, args.group_ranks, args.dtype)
    name, group, ranks, dtype = (None if value is None else plain_text(str(value)) for value in given)
    size = within(_integer(args.group_size), 0, MOST)
    sequence = within(_integer(args.collective_sequence), -LARGEST, LARGEST)
    inputs, outputs = (within(_integer(value), 0, LARGEST) for value in (args.in_elements, args.out_elements))
    return CollectiveArgs(name, group, ranks, size, sequence, dtype, inputs, outputs)


def input_bytes(args: Args) -> int:
    """Bytes of the tensors given to an event, `MISSING` where its arguments do not say."""
    try:
        dims, types = msgspec.json.decode(args.input_dims), msgspec.json.decode(args.input_types)
        total = sum(math.prod(dim) * _INPUT_BYTES[kind] for dim, kind in zip(dims, types, strict=True))
    except (TypeError, ValueError, KeyError, OverflowError, RecursionError, msgspec.DecodeError):
        return MISSING
    return MISSING if within(total, 0, LARGEST) is None else total


@lru_cache(maxsize=1 << 14)
def distinct_types(text: bytes) -> str:
    """The distinct types in the JSON text of a list of them, joined by commas; those of lists too, empty ones aside."""
    try:
        given = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return ""
    if not isinstance(given, list):
        return ""
    if any(isinstance(item, list) for item in given):
        given = [part for item in given for part in (item if isinstance(item, list) else [item])]
    return ",".join(dict.fromkeys(str(item) for item in given if item))


class _Untimed(msgspec.Struct, gc=False):
    ph: str = ""
    cat: str | None = None
    name: str = ""
    pid: int | str | None = None
    tid: int | str | None = None
    id: msgspec.Raw = _NULL  # undecoded: only excerpts ask for it, and tools write any number
    args: Args | None = None


class Event(_Untimed, gc=False):
    """An event, its times as floats."""

    ts: float = 0.0
    dur: float = 0.0


class ExactEvent(_Untimed, gc=False):
    """As `Event`, for files whose times need more digits than a float has."""

    ts: Decimal = Decimal(0)
    dur: Decimal = Decimal(0)


def us_to_ns(values: Sequence[float]) -> Ints:
    """Microseconds to integer ns: whole part and rest apart, so that no digit is lost below 2^43 us.

    A time that is no number, or lies beyond `LATEST_NS`, becomes `MISSING`.
    """
    us = np.array(values, dtype=np.float64)
    lost = ~(np.abs(us) < LATEST_NS / 1000)
    if lost.any():
        us[lost] = 0
    whole = np.floor(us)
    ns: Ints = whole.astype(np.int64) * 1000 + np.rint((us - whole) * 1000).astype(np.int64)
    return np.where(lost, MISSING, ns) if lost.any() else ns


def exact_to_ns(values: Sequence[Decimal]) -> Ints:
    """Microseconds with all their decimals to integer ns; `MISSING` as in `us_to_ns`."""
    thousand, latest = Decimal(1000), Decimal(LATEST_NS) / 1000
    fit = (value.is_finite() and abs(value) < latest for value in values)
    return np.array([int(v * thousand) if its else MISSING for v, its in zip(values, fit, strict=True)], dtype=np.int64)


def ns_to_us(ns: int) -> str:
    """Integer ns as the decimal microseconds of a trace file: a float of them no longer tells nanoseconds apart."""
    us, rest = divmod(abs(ns), 1000)
    return f"{'-' if ns < 0 else ''}{us}.{rest:03d}"


def integers(values: Sequence[Any]) -> Ints:
    """The int64 column of loosely typed values; what is no integer becomes `MISSING`."""
    if None in values:  # by identity, so without a comparison a value: a root frame's parent is null
        values = [MISSING if value is None else value for value in values]
    try:
        # The type is given: from texts numpy would make a column as wide as the longest.
        column = np.array(values, dtype=np.int64)
    except (TypeError, ValueError, OverflowError):
        column = np.empty(0, dtype=np.int64)
    if column.shape == (len(values),):
        return column
    return np.array([_integer(value) for value in values], dtype=np.int64)


def _integer(value: Any) -> int:
    try:
        number = int(value, 0) if isinstance(value, str) else int(value)
    except (TypeError, ValueError, OverflowError):
        return MISSING
    return number if -(1 << 63) <= number < 1 << 63 else MISSING


def floats(values: Sequence[Any]) -> NDArray[np.float64]:
    """The float64 column of loosely typed values; what is no number becomes NaN."""
    out = np.full(len(values), np.nan)
    for row, value in enumerate(values):
        if isinstance(value, int | float) and abs(value) < LARGEST:
            out[row] = value
    return out


def blocks(args: Sequence[Args]) -> NDArray[np.float64]:
    """Thread blocks of the launch grid `[x, y, z]` where blocks per multiprocessor are not given; else NaN."""
    out = np.full(len(args), np.nan)
    for row, arg in enumerate(args):
        if arg.blocks_per_sm is None and isinstance(grid := arg.grid, list):
            sides = [side for side in grid if within(side, 0, MOST) is not None]
            out[row] = math.prod(sides) if len(sides) == len(grid) == 3 else np.nan
    return out
