"""A trace's JSON, tolerantly decoded: texts, numbers and events within bounds, since traces are untrusted input.

Tools rewrite numbers as text, and Kineto writes some as `nan`. The reader applies the bounds once, and notes the number
of events it leaves out, so that all later code computes with finite numbers whose sums fit in int64.
"""

import math
import os
import re
from decimal import Context, Decimal
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from steptrace.foreign_messages import MSGSPEC_TRUNCATED
from steptrace.trace.mend import mend

#: A day, longer than any profile: a hundred thousand times this still fits in int64.
LONGEST_NS: Final = 86_400 * 10**9
#: Latest time of a file, in 2116: the difference of any two times fits in int64.
LATEST_NS: Final = 1 << 62
#: Most bytes or elements of one copy or tensor: a pebibyte.
LARGEST: Final = 1 << 50
#: Most ranks of a job, blocks along one side of a grid, and other counts.
MOST: Final = 1 << 31
#: Most GPUs of one trace: a process has up to 16, and each has its own figures for every step.
MOST_DEVICES: Final = 256
#: Most characters of a name; kernels of template libraries have a few thousand.
LONGEST_NAME: Final = 1 << 14

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")


def plain_text(text: str) -> str:
    """A text of a trace, cut to its bound, with control characters (terminal commands) replaced by U+FFFD."""
    if text.isascii() and text.isprintable() and len(text) <= LONGEST_NAME:
        return text
    text = _CONTROL.sub("\ufffd", text[: LONGEST_NAME + 1])
    return text if len(text) <= LONGEST_NAME else text[: LONGEST_NAME - 1] + "…"


def path_text(path: str | Path) -> str:
    """A path as printable text, whatever bytes the file's name has."""
    return plain_text(os.fsencode(path).decode(errors="replace"))


def within(value: Any, low: int, high: int) -> int | None:
    """`value` if it is an integer in `[low, high)`, else None."""
    return value if type(value) is int and low <= value < high else None


def plain_values(raw: dict[Any, Any]) -> dict[str, Any]:
    """The texts and numbers of a JSON object that are within bounds, without the rest."""
    plain: dict[str, Any] = {}
    for key, value in raw.items():
        if isinstance(value, str):
            plain[plain_text(key)] = plain_text(value)
        elif isinstance(value, float) or within(value, -LARGEST, LARGEST) is not None:
            plain[plain_text(key)] = value
    return plain


#: Marks missing values in integer columns while reading; in tables they are null.
MISSING: Final = -(1 << 63)

_LATEST_US = Decimal(LATEST_NS) / 1000
#: Enough digits that no product is rounded.
_EXACT: Final = Context(prec=1000)

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
    "in_split": "In split size",
    "from_rank": "Src Rank",
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
    in_split: str | None = None
    from_rank: int | None = None
    #: Of a batch of sends and receives the ranks that it receives from, separated by commas; never given by PyTorch.
    from_ranks: str | None = None


def collective_args(args: dict[str, Any]) -> CollectiveArgs:
    """The arguments of a collective by name, with loosely written values parsed."""
    recorded = {field: args.get(name) for field, name in COLLECTIVE_ARGS.items()}
    texts = {
        field: None if (value := recorded[field]) is None else plain_text(str(value))
        for field in ("name", "group", "group_ranks", "dtype", "in_split")
    }
    return CollectiveArgs(
        **texts,
        group_size=within(integer(recorded["group_size"]), 0, MOST),
        sequence=within(integer(recorded["sequence"]), -LARGEST, LARGEST),
        in_elements=within(integer(recorded["in_elements"]), 0, LARGEST),
        out_elements=within(integer(recorded["out_elements"]), 0, LARGEST),
        from_rank=within(integer(recorded["from_rank"]), 0, MOST),
    )


class CopyArgs(NamedTuple):
    """Direction and ends of a copy as arguments, which PyTorch's CUPTI monitor writes instead of the name's form."""

    direction: str
    source: str
    destination: str

    @property
    def name(self) -> str:
        """The name that Kineto gives such a copy: `Memcpy DtoH (Device -> Pageable)`."""
        return f"Memcpy {self.direction} ({self.source} -> {self.destination})"


#: The argument that tells of a copy's direction.
COPY_DIRECTION: Final = "copy kind"


def described(args: dict[str, Any]) -> CollectiveArgs | CopyArgs:
    """What the arguments of an event describe: a collective, or the direction of a copy."""
    if COPY_DIRECTION not in args or COLLECTIVE_ARGS["name"] in args:
        return collective_args(args)
    source, destination = (
        plain_text(str(args.get(key, "unknown"))).replace("_", " ").title() for key in ("src kind", "dst kind")
    )
    return CopyArgs(plain_text(str(args[COPY_DIRECTION])), source, destination)


@lru_cache(maxsize=1 << 10)
def input_bytes(dims: str, types: str) -> int:
    """Bytes of tensors, from the JSON lists of their sizes and types; `MISSING` if these are incomplete."""
    try:
        sizes = msgspec.json.decode(dims, type=list[list[int]])
        names = msgspec.json.decode(types, type=list[str])
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
    return (
        int(_EXACT.multiply(us, 1000).to_integral_value())
        if us.is_finite() and -_LATEST_US < us < _LATEST_US
        else MISSING
    )


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


Value = TypeVar("Value")

#: Bytes of a text that an error shows.
_SHOWN: Final = 200

# Possessive, so that long strings take no memory; an unclosed string is one token, so that nothing is read twice.
_STRINGS = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)
_HALVES: Final = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?P<pair>\\u[dD][c-fC-F][0-9a-fA-F]{2})?|\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\\\"
)
_BARE_NUMBER = re.compile(rb"(?<=[:\[,])(\s*)-?(?:nan|inf|infinity)\b", re.IGNORECASE)


def whole_characters(text: bytes) -> bytes:
    """A JSON text in which halves of a character stand as U+FFFD: Python writes them for bytes that are no UTF-8."""
    return _HALVES.sub(lambda half: half[0] if half["pair"] or half[0] == b"\\\\" else b"\\ufffd", text)


def repair(text: bytes) -> bytes:
    """Repair known mistakes: damaged strings (`trace.mend`), bare `nan` and `inf` (null), invalid UTF-8 (U+FFFD)."""
    text, _ = mend(text.decode("utf-8", errors="replace").encode())
    text = whole_characters(text)
    parts = []
    position = 0
    for string in _STRINGS.finditer(text):
        parts.append(_BARE_NUMBER.sub(rb"\1null", text[position : string.start()]))
        parts.append(string.group())
        position = string.end()
    parts.append(_BARE_NUMBER.sub(rb"\1null", text[position:]))
    return b"".join(parts)


def decode_leniently(decoder: msgspec.json.Decoder[Value], text: bytes) -> Value:
    """Decode a text, repaired if needed.

    Raises:
        msgspec.DecodeError: it is not JSON even after repair, or nested too deep.
        msgspec.ValidationError: it is JSON of another type than the decoder's.
    """
    try:
        try:
            return decoder.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return decoder.decode(repair(text))
    except RecursionError as error:
        raise msgspec.DecodeError("nested too deep") from error


_OBJECT: Final = msgspec.json.Decoder(dict[str, Any])


def decode_object(text: bytes) -> dict[str, Any] | None:
    """The JSON object in a text, None without one."""
    try:
        return decode_leniently(_OBJECT, text)
    except msgspec.DecodeError:
        return None


class Event(msgspec.Struct, gc=False):
    """An event of a trace, its times in microseconds with all their digits."""

    ph: str = ""
    cat: str | None = None
    name: str = ""
    pid: int | str | None = None
    tid: int | str | None = None
    ts: Decimal = Decimal(0)
    dur: Decimal = Decimal(0)
    args: dict[str, msgspec.Raw] | None = None


_EVENT: Final = msgspec.json.Decoder(Event)


def decode_event(text: bytes) -> tuple[Event, bytes]:
    """An event, and its text, made valid JSON where it is not.

    Raises:
        msgspec.DecodeError: it is no event.
    """
    # msgspec checks UTF-8 only in strings that it decodes.
    text = text.decode(errors="replace").encode()
    try:
        return _EVENT.decode(text), text
    except (msgspec.DecodeError, RecursionError):
        text = repair(text)
        return decode_leniently(_EVENT, text), text


def is_truncated(text: bytes) -> bool:
    """Whether a text is the beginning of a JSON value."""
    try:
        decode_leniently(_OBJECT, text)
    except msgspec.DecodeError as error:
        return MSGSPEC_TRUNCATED.find(error) is not None
    return False


def why_no_event(text: bytes) -> str | None:
    """Why no event begins a text that follows the events of an array; None if the text ends too early."""
    text = repair(text.lstrip().removeprefix(b",")).lstrip()
    if not text or is_truncated(text) or decode_object(text) is not None:
        return None
    in_one_line = " ".join(text[:_SHOWN].decode(errors="replace").split())
    return f"an event that cannot be read: {plain_text(in_one_line)}"
