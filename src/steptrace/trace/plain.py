"""Rewrites chunks of events that the scanner rejects into the form that it reads.

The scanner reads JSON with the values that profilers write. Numbers as text, duplicate keys and the like come from
tools that rewrite traces. Such a chunk is decoded here, and the fields that are needed are written again.
"""

from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import msgspec

from steptrace.errors import TraceError
from steptrace.trace.bounds import LARGEST, LATEST_NS, MOST, plain_text, within
from steptrace.trace.decode import decode_leniently
from steptrace.trace.events import COLLECTIVE_ARGS, MISSING, collective_args, integer, ns_to_us, to_ns
from steptrace.trace.kinds import COLUMNS

_NULL: Final = msgspec.Raw(b"null")
#: Most bytes of JSON that the scanner accepts for a category, a phase, or the id of a process or thread; and a number
#: of characters that always fit.
_LONGEST_ID, _CHARACTERS = 100, 24
_FORMS: Final = {
    column.argument: column.form for kind in COLUMNS.values() for column in kind.values() if column.argument
}


class Event(msgspec.Struct, gc=False):
    """An event of a trace, its times in microseconds with all their digits."""

    ph: str = ""
    cat: str | None = None
    name: str = ""
    pid: int | str | None = None
    tid: int | str | None = None
    ts: Decimal = Decimal(0)
    dur: Decimal = Decimal(0)
    id: msgspec.Raw = _NULL
    args: dict[str, msgspec.Raw] | None = None


_TEXTS = msgspec.json.Decoder(list[msgspec.Raw])
_EVENT = msgspec.json.Decoder(Event)


def decode_events(chunk: bytes, path: Path) -> list[tuple[Event, bytes]]:
    """The events of a chunk, each with its text, made valid JSON where it is not.

    Raises:
        TraceError: it is not JSON, or not a list of events.
    """
    try:
        # msgspec checks UTF-8 only in strings that it decodes.
        texts = decode_leniently(_TEXTS, chunk.decode(errors="replace").encode())
        return [(_EVENT.decode(text), bytes(text)) for text in texts]
    except msgspec.ValidationError as error:
        raise TraceError(
            f"valid JSON, but not a trace: {error}", where=path, expected="events as torch.profiler writes them"
        ) from error
    except msgspec.DecodeError as error:
        raise TraceError(f"invalid JSON among the events ({error})", where=path) from error


def plain_chunk(chunk: bytes, path: Path) -> bytes:
    """A chunk in the form that the scanner reads.

    Raises:
        TraceError: as `decode_events`.
    """
    return msgspec.json.encode([_plain_event(event) for event, _ in decode_events(chunk, path)])


def _plain_event(event: Event) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "ph": _plain_id(event.ph),
        "cat": _plain_id(event.cat),
        "name": event.name,
        "pid": _plain_id(event.pid),
        "tid": _plain_id(event.tid),
        "ts": _plain_time(event.ts),
        "dur": _plain_time(event.dur),
        "args": {name: _plain_arg(name, raw) for name, raw in (event.args or {}).items() if name in _FORMS},
    }
    if event.args and COLLECTIVE_ARGS["name"] in event.args:
        given = {name: _decoded(event.args[name]) for name in COLLECTIVE_ARGS.values() if name in event.args}
        described = collective_args(given)._asdict()
        plain["args"] |= {COLLECTIVE_ARGS[field]: value for field, value in described.items()}
    if event.ph == "M" and event.args and isinstance(name := _decoded(event.args.get("name", _NULL)), str):
        plain["args"]["name"] = name
    return plain


def _plain_id(value: int | str | None) -> int | str | None:
    if isinstance(value, int):
        if -LATEST_NS < value < LATEST_NS:
            return value
        value = str(value)
    if value is None or len(msgspec.json.encode(value)) <= _LONGEST_ID:
        return value
    return plain_text(value)[:_CHARACTERS]


def _plain_time(us: Decimal) -> msgspec.Raw:
    ns = to_ns(us)
    return msgspec.Raw(str((1 << 63) - 1) if ns == MISSING else ns_to_us(ns))


def _plain_arg(name: str, raw: msgspec.Raw) -> Any:
    form = _FORMS[name]
    if form == "collective":
        return None
    if form in ("list", "list begin", "list end"):
        try:
            return msgspec.json.decode(raw, type=list[str | list[str]] if name == "Input type" else list[list[int]])
        except (msgspec.DecodeError, RecursionError):
            return None
    value = _decoded(raw)
    if form == "integer":
        number = integer(value)
        return None if number == MISSING else number
    if form == "product":
        fits = isinstance(value, list) and len(value) == 3 and all(within(side, 0, MOST) is not None for side in value)
        return value if fits else None
    real = isinstance(value, int | float) and abs(value) < LARGEST
    return round(float(value), 9) if real else None


def _decoded(raw: msgspec.Raw) -> Any:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return None
