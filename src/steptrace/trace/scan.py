"""Chunks of events to columns with the compiled scanner, for what is written as PyTorch and most tools write it.

The scanner knows JSON's grammar and the few forms of values that make up nearly all traces. Of a chunk that holds
anything else it says so, and the Python reader takes that chunk: so both give the same columns.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from steptrace.compiled import compiled
from steptrace.trace.decode import EventDecoder
from steptrace.trace.events import MISSING, Args, Event, Ints, collective_args, distinct_types, input_bytes
from steptrace.trace.kinds import INTEGER_ARGS, KINDS, OTHER_COLUMNS, PHASES, Names, dtype_of
from steptrace.trace.names import GPU_CATEGORIES, host_collective

Codes = NDArray[np.int32]

_EVENT, _ARGS = msgspec.json.Decoder(Event), msgspec.json.Decoder(Args)
_STRING, _ID = msgspec.json.Decoder(str), msgspec.json.Decoder(int | str | None)
#: The kinds in the scanner's order, and what it has for the last columns of some.
_KINDS = tuple(INTEGER_ARGS)
_LAST: dict[str, tuple[str, ...]] = {
    **OTHER_COLUMNS,
    "label": ("dims_begin", "dims_end", "types_begin", "types_end"),
}


@dataclass(frozen=True)
class Scanned:
    """What a chunk holds: columns by kind, events by phase and category, and the events that name threads."""

    columns: dict[str, dict[str, NDArray[Any]]]
    counts: dict[tuple[str, str | None], int]
    named_threads: list[Event]


class _Lookup:
    """The reader's number for each of the scanner's, -1 for what cannot be decoded."""

    def __init__(self, numbers: Names, decode: Callable[[bytes], Any]) -> None:
        self._numbers, self._decode = numbers, decode
        self._codes: Codes = np.empty(0, dtype=np.int32)

    def add(self, texts: list[bytes]) -> None:
        """Take in the scanner's next strings."""
        if texts:
            self._codes = np.append(self._codes, np.array([self._code(text) for text in texts], dtype=np.int32))

    def _code(self, text: bytes) -> int:
        try:
            value = self._decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return -1
        return int(self._numbers.code([value])[0])

    def of(self, numbers: Codes) -> Codes:
        """The reader's numbers.

        Raises:
            UnicodeError: one of them stands for text that only the Python reader can read.
        """
        found = self._codes[numbers]
        if len(found) and found.min() < 0:
            raise UnicodeError
        return found


class ChunkScanner:
    """Reads a file's chunks with the compiled scanner. `numbers` are those of names, threads and collectives."""

    def __init__(self, scanner: type[Any], decoder: EventDecoder, numbers: tuple[Names, Names, Names]) -> None:
        names, threads, collectives = numbers
        self._decoder, self._collectives = decoder, collectives
        phases = {category: PHASES.get(kind, "X") for category, kind in KINDS.items()}
        sorts = [(f"{c}\0{phase}".encode(), _KINDS.index(KINDS[c])) for c, phase in phases.items()]
        self._scanner = scanner(int.from_bytes(os.urandom(8)), sorts)
        self._sorts: list[tuple[str, str | None]] = []
        self._names = _Lookup(names, lambda text: _STRING.decode(b'"%b"' % text))
        self._threads = _Lookup(threads, lambda text: tuple(_ID.decode(part or b"null") for part in text.split(b"\0")))
        self._types = _Lookup(names, distinct_types)
        self._categories = names.code(GPU_CATEGORIES.get(category, "") for category in phases)
        self._name_texts = names

    def scan(self, chunk: bytes) -> Scanned | None:
        """The content of a chunk, the JSON text of an array; None where only the Python reader can say what it is."""
        found = self._scanner.scan(chunk, self._decoder.needs_exact)
        if found is True:
            self._decoder.needs_exact = True
            found = self._scanner.scan(chunk, True)
        if isinstance(found, bool):
            return None
        columns, named, collectives, counts, new = found
        for lookup, texts in zip((self._names, self._threads, self._types), new, strict=False):
            lookup.add(texts)
        self._sorts += [_sort(text) for text in new[3]]
        try:
            described = self._collectives.code(collective_args(_ARGS.decode(chunk[a:b])) for a, b in collectives)
            threads = [_EVENT.decode(chunk[begin:end]) for begin, end in named]
            read = {
                kind: self._columns(kind, given, described, chunk)
                for kind, given in zip(_KINDS, columns, strict=True)
                if given[0]
            }
        except (msgspec.DecodeError, UnicodeError):
            return None
        tally = np.frombuffer(counts, dtype=np.int64)
        return Scanned(read, {self._sorts[i]: int(tally[i]) for i in np.flatnonzero(tally)}, threads)

    def _columns(self, kind: str, given: list[bytes], described: Codes, chunk: bytes) -> dict[str, NDArray[Any]]:
        names = ("ts", "dur", "thread", "name", *INTEGER_ARGS[kind], *_LAST.get(kind, ()))
        columns: dict[str, NDArray[Any]] = {
            name: np.frombuffer(data, dtype_of(name)) for name, data in zip(names, given, strict=True)
        }
        columns["name"], columns["thread"] = self._names.of(columns["name"]), self._threads.of(columns["thread"])
        if "dtypes" in columns:
            columns["dtypes"] = self._types.of(columns["dtypes"])
        if "category" in columns:
            columns["category"] = self._categories[columns["category"]]
        if "collective" in columns:
            columns["collective"] = np.append(described, np.int32(-1))[columns["collective"]]
        if kind == "label":
            spans = [columns.pop(name) for name in _LAST[kind]]
            columns["bytes"] = self._input_bytes(columns["name"], spans, chunk)
        return columns

    def _input_bytes(self, codes: Codes, spans: list[Ints], chunk: bytes) -> Ints:
        """What labels of the host's own collectives were given, in bytes; `MISSING` for others."""
        texts = self._name_texts.values
        told = np.isin(codes, [code for code in np.unique(codes) if host_collective(texts[code]) is not None])
        sizes = np.full(len(codes), MISSING, dtype=np.int64)
        for row in np.flatnonzero(told):
            begin, end, types_begin, types_end = (int(span[row]) for span in spans)
            if begin >= 0 and types_begin >= 0:
                dims, types = msgspec.Raw(chunk[begin:end]), msgspec.Raw(chunk[types_begin:types_end])
                sizes[row] = input_bytes(Args(input_dims=dims, input_types=types))
        return sizes


def chunk_scanner(decoder: EventDecoder, numbers: tuple[Names, Names, Names]) -> ChunkScanner | None:
    """A scanner for one file, None where there is no compiled code."""
    return None if compiled is None else ChunkScanner(compiled.Scanner, decoder, numbers)


def _sort(text: bytes) -> tuple[str, str | None]:
    """Phase and category, which the scanner writes with a byte 0 between them, or 1 for no category."""
    category, given, phase = text.decode().rpartition("\0")
    return (phase, category) if given else (text[1:].decode(), None)
