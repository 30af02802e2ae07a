"""Chunks of events to columns, with the compiled scanner, for files of any size.

The columns are those of `kinds.COLUMNS`. Values of another type than a column's are missing values.
"""

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from steptrace.compiled import compiled
from steptrace.errors import TraceError
from steptrace.trace.bounds import LATEST_NS, plain_text
from steptrace.trace.decode import decode_leniently
from steptrace.trace.events import CollectiveArgs, collective_args, plain_list
from steptrace.trace.kinds import COLUMNS, KINDS, LISTS, PHASES, GrowingColumn, Names
from steptrace.trace.names import GPU_CATEGORIES

Codes = NDArray[np.int32]
Thread = tuple[int | str | None, int | str | None]

_STRING, _ID = msgspec.json.Decoder(str), msgspec.json.Decoder(int | str | None)
_MEMORY_EVENT = "[memory]"


class _ThreadName(msgspec.Struct):
    """An event that names a thread."""

    pid: int | str | None = None
    tid: int | str | None = None
    args: dict[str, Any] | None = None


_THREAD_NAME = msgspec.json.Decoder(_ThreadName)
_ARGS = msgspec.json.Decoder(dict[str, Any])


class _Lookup:
    """Maps the scanner's numbers to the reader's."""

    def __init__(self, numbers: Names, value: Callable[[bytes], Any]) -> None:
        self._numbers, self._value = numbers, value
        self._codes: Codes = np.empty(0, dtype=np.int32)

    def add(self, texts: Iterable[bytes]) -> None:
        """Add the scanner's next strings."""
        self._codes = np.append(self._codes, self._numbers.code(map(self._value, texts)))

    def __getitem__(self, numbers: Codes) -> Codes:
        return self._codes[numbers]


class ChunkScanner:
    """Reads a file's chunks into columns, which hold indices in `names`, `threads` and `collectives`.

    `thread_names` are those that the file gives.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.names, self.threads, self.collectives = Names(), Names(), Names()
        self.columns = {
            kind: {name: GrowingColumn(column.dtype) for name, column in columns.items()}
            for kind, columns in COLUMNS.items()
        }
        self.thread_names: dict[Thread, str] = {}
        categories = {kind: [category for category in KINDS if KINDS[category] == kind] for kind in COLUMNS}
        layout = [
            (
                [(c.form, c.argument.encode(), np.dtype(c.dtype).itemsize) for c in columns.values()],
                [f"{category}\0{PHASES.get(kind, 'X')}".encode() for category in categories[kind]],
            )
            for kind, columns in COLUMNS.items()
        ]
        self._scanner = compiled.Scanner(int.from_bytes(os.urandom(8)), layout)
        self._sorts: list[tuple[str, str | None]] = []
        self._counts = b""
        self._of_names = _Lookup(self.names, _text)
        self._of_threads = _Lookup(self.threads, lambda key: tuple(map(_written_id, key.split(b"\0"))))
        self._of_lists = _Lookup(self.names, plain_list)
        sorts = (category for of in categories.values() for category in of)
        self._of_sorts = self.names.code(GPU_CATEGORIES.get(category, "") for category in sorts)

    def take(self, chunk: bytes) -> tuple[int, bool]:
        """Append the rows of the whole events that a text begins with: see `EventStream.read`.

        Raises:
            TraceError: a string in it is no JSON.
        """
        columns, named, described, self._counts, new, taken, ended = self._scanner.scan(chunk)
        try:
            for lookup, texts in zip((self._of_names, self._of_threads, self._of_lists), new, strict=False):
                lookup.add(texts)
            self._sorts += map(_sort, new[3])
            collectives = [collective_args(decode_leniently(_ARGS, chunk[begin:end])) for begin, end in described]
            events = [decode_leniently(_THREAD_NAME, chunk[begin:end]) for begin, end in named]
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise TraceError(f"invalid JSON among the events ({error})", where=self._path) from error
        for kind, given in zip(COLUMNS, columns, strict=True):
            for name, values in self._columns(kind, given, collectives).items() if given[0] else ():
                self.columns[kind][name].append(values)
        for event in events:
            if isinstance(given_name := (event.args or {}).get("name"), str):
                self.thread_names[_id(event.pid), _id(event.tid)] = plain_text(given_name)
        return taken, ended

    def counts(self, phase: str) -> dict[str, int]:
        """How many events of a phase each category has; those without one are under the empty name."""
        numbers = np.frombuffer(self._counts, dtype=np.int64)
        every = ((*self._sorts[i], int(numbers[i])) for i in np.flatnonzero(numbers))
        return {category or "": number for own, category, number in every if own == phase}

    def _columns(self, kind: str, given: list[bytes], collectives: list[CollectiveArgs]) -> dict[str, NDArray[Any]]:
        columns: dict[str, NDArray[Any]] = {
            name: np.frombuffer(data, column.dtype)
            for (name, column), data in zip(COLUMNS[kind].items(), given, strict=True)
        }
        columns["name"], columns["thread"] = self._of_names[columns["name"]], self._of_threads[columns["thread"]]
        columns |= {name: self._of_lists[columns[name]] for name in LISTS if name in columns}
        if "category" in columns:
            columns["category"] = self._of_sorts[columns["category"]]
        if "collective" in columns:
            columns["collective"] = np.append(self.collectives.code(collectives), np.int32(-1))[columns["collective"]]
        if kind == "memory":
            allocator = columns["name"] == self.names.code([_MEMORY_EVENT])
            columns = {name: values[allocator] for name, values in columns.items()}
        return columns


def _text(written: bytes) -> str:
    """The text between a JSON string's quotation marks, decoded; invalid UTF-8 becomes U+FFFD."""
    return _STRING.decode(f'"{written.decode(errors="replace")}"')


def _written_id(written: bytes) -> int | str | None:
    return _id(_ID.decode(written.decode(errors="replace") or "null"))


def _id(value: int | str | None) -> int | str | None:
    """The id of a process or thread; a number beyond int64 as text."""
    if value is None or (isinstance(value, int) and -LATEST_NS < value < LATEST_NS):
        return value
    return plain_text(str(value))


def _sort(written: bytes) -> tuple[str, str | None]:
    """Phase and category, which the scanner writes with a byte 0 between them, or 1 for no category."""
    category, between, phase = written.rpartition(b"\0")
    return (_text(phase), _text(category)) if between else (_text(written[1:]), None)
