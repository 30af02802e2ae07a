"""Reads as much as possible of an event, or of a trace's metadata, that is no JSON even with its strings repaired.

The same holds for an event whose members are JSON of another type: a number or null as its name, a list as arguments.

A key that was not escaped, a bare word, or a list cut short by dots must not cost the trace, nor the event its time and
its ids. The members of the object that are JSON are kept, and the others are left out. A bare word becomes a text.
"""

import json
import re
from itertools import islice
from typing import Any, Final

#: The standard library's: a program that is measured may have no other.
_DECODER: Final = json.JSONDecoder(strict=False)
_KEY: Final = re.compile(r'(?<=[{,])\s*"(?P<key>[^"\\\x00-\x1f]{1,200})"\s*:\s*')
#: Keys that an event of Chrome's format has.
_EVENT_KEYS: Final = frozenset(("ph", "cat", "name", "pid", "tid", "ts", "dur", "id", "bp", "s"))
#: Those of them that hold texts, and what stands for a name that is null.
_TEXT_KEYS: Final = ("ph", "cat", "name")
_UNNAMED: Final = "unnamed"
#: The begin of an event behind another one, or behind one that was cut off.
_NEXT: Final = re.compile(rb'(?:\}|,)\s*+(?:,\s*+)?(?=\{\s*+"ph"\s*+:|\{[^{}]{1,1000}?"ph"\s*+:)')
#: The end of the last event and of the array.
_END: Final = re.compile(rb"\}\s*+\](?=\s*+(?:\}|,\s*+\"|\Z))")
#: How many places are tried that may be this end: the rest of the file is read for each of them.
_MOST_ENDS: Final = 100
#: Ends of objects.
_CLOSING: Final = re.compile(r"(?:\s*\})*")
#: A value without quotation marks that may stand for a text.
_BARE: Final = re.compile(r'[^"{}\\\x00-\x1f]{1,4096}\Z')
#: Objects within objects; PyTorch writes three.
_DEEPEST: Final = 8
#: Bare words that stand for no text.
_NOTHING: Final = frozenset(("", "None", "nan", "-nan", "inf", "-inf", "undefined"))


def salvage_events(text: bytes, *, whole: bool = False) -> tuple[bytes, int]:
    """The events in a text, without their parts that are not JSON, and the number of events that had such parts.

    The text begins with an event, or with the comma before it.

    Args:
        whole: whether the text reaches to the end of the file. Else what follows the last event that another one
            follows stays as it is: it may be cut off.
    """
    begin = text.find(b"{")
    if begin < 0:
        return text, 0
    events: list[bytes] = []
    count = joined = 0
    for after in _NEXT.finditer(text, begin):
        event = text[begin : after.start() + (after[0][:1] == b"}")]
        if not _is_event(event):
            salvaged = _salvaged(event)
            count += salvaged is not None
            event = salvaged or event
        joined += b"," not in after[0]
        events.append(event)
        begin = after.end()
    last = text[begin:]
    if whole and (end := _end_of_events(last)) and not _is_event(last[:end]) and (salvaged := _salvaged(last[:end])):
        count += 1
        last = salvaged + last[end:]
    if not count + joined:
        return text, 0
    head = text[: text.find(b"{")]
    return head + b"".join(event + b",\n" for event in events) + last, count + joined


def _end_of_events(text: bytes) -> int:
    """Where the last event of a file ends, from what follows it; 0 if that is not known."""
    for end in islice(_END.finditer(text), _MOST_ENDS):
        rest = text[end.end() :].strip()
        if not rest or _is_json(b'{"traceEvents": null' + rest):
            return end.start() + 1
    return 0


def salvage_object(text: str) -> dict[str, Any]:
    """The members of a JSON object that can be read; empty without any."""
    members: dict[str, Any] = {}
    at = 0
    while (key := _KEY.search(text, at)) is not None:
        found, at = _value(text, key.end())
        if found:
            members[key["key"]] = found[0]
    return members


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _is_event(text: bytes) -> bool:
    """Whether a text is JSON, and if it is an object, one whose texts and arguments are of the types of an event."""
    try:
        event = json.loads(text)
    except (ValueError, RecursionError):
        return False
    if not isinstance(event, dict):
        return True
    texts = all(isinstance(event.get(key, ""), str) for key in _TEXT_KEYS)
    return texts and (event.get("args") is None or isinstance(event["args"], dict))


def _salvaged(event: bytes) -> bytes | None:
    """An event as JSON, with those of its members that can be read; None if these are too few, or too deep."""
    text = event.decode(errors="replace")
    members: dict[str, Any] = {}
    args: dict[str, Any] = {}
    depth = 0  # 1 in the arguments, more in objects among them
    at = 0
    while (key := _KEY.search(text, at)) is not None:
        found, at = _value(text, key.end())
        name = key["key"]
        if not found and text[key.end() : key.end() + 1] == "{" and (depth or name == "args"):
            depth += 1
            at = key.end()
            if depth > _DEEPEST:
                return None
            continue
        if found and depth == 1:
            args.setdefault(name, found[0])
        elif found and not depth and name == "args" and isinstance(found[0], dict):
            args = found[0]
        elif found and not depth and name in _EVENT_KEYS:
            members.setdefault(name, found[0])
        closing = _CLOSING.match(text, at)
        depth = max(0, depth - (closing[0].count("}") if closing else 0))
    if not isinstance(written := members.get("name", ""), str):
        members["name"] = _UNNAMED if written is None else str(written)
    if not isinstance(members.get("ph"), str) or (members["ph"] == "X" and not isinstance(members.get("cat"), str)):
        return None
    return json.dumps(members | {"args": args}).encode()


def _value(text: str, begin: int) -> tuple[tuple[Any] | None, int]:
    """The value that begins at a place of a text, and where it ends. The value is None if the text there holds none."""
    try:
        value, end = _DECODER.raw_decode(text, begin)
    except (ValueError, RecursionError):
        pass
    else:
        rest = text[end : end + 20].lstrip()
        if not rest or rest[0] in ",}":
            return (value,), end
    following = _KEY.search(text, begin)
    end = following.start() if following else len(text)
    written = text[begin:end].rstrip(" \t\r\n,")
    inner = written.rstrip("} \t\r\n")
    end = begin + len(inner)
    if not _BARE.match(inner) or inner in _NOTHING:
        return None, end
    return (inner,), end
