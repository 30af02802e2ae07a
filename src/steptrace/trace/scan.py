"""The kinds of Kineto's events, and chunks of events to their columns with the compiled scanner, for files of any size.

Integers that an event does not have are `MISSING`, reals NaN; so are values of another type than a column's. Columns
grow part by part.
"""

import os
from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from steptrace.compiled import compiled
from steptrace.errors import TraceError
from steptrace.trace.decode import LATEST_NS, CollectiveArgs, collective_args, decode_leniently, plain_list, plain_text
from steptrace.trace.mend import escape, is_raw_path
from steptrace.trace.names import GPU_CATEGORIES

#: Kineto's category -> kind of event, old spellings included. Others without one of `ENDINGS` are only counted.
KINDS: Final = {
    "cpu_op": "op",
    "Operator": "op",
    "cuda_runtime": "call",
    "cuda_driver": "call",
    "Runtime": "call",
    "python_function": "frame",
    "user_annotation": "label",
    "cpu_instant_event": "memory",
    **dict.fromkeys(GPU_CATEGORIES, "gpu"),
}

#: Endings of further categories of a kind: `xpu_runtime`, `mtia_runtime`, `privateuse1_driver`.
ENDINGS: Final = {"call": ("_runtime", "_driver")}

#: The phase of a kind's events, if they are not complete events.
PHASES: Final = {"memory": "i"}

#: The forms of columns (ext/compiled/scan.h says what each holds) and their dtypes.
FORMS: Final[dict[str, type[np.int32 | np.int64 | np.float64]]] = {
    **dict.fromkeys(("thread", "name", "sort", "list", "collective"), np.int32),
    **dict.fromkeys(("start", "length", "integer"), np.int64),
    **dict.fromkeys(("real", "product"), np.float64),
}


class Column(NamedTuple):
    """A column's form, and the argument it is read from, if any; bars divide names that an argument may have."""

    form: str
    argument: str = ""

    @property
    def dtype(self) -> type[np.int32 | np.int64 | np.float64]:
        """The dtype of its values."""
        return FORMS[self.form]


_EVERY = {"ts": Column("start"), "dur": Column("length"), "thread": Column("thread"), "name": Column("name")}
_EXTERNAL_ID = Column("integer", "External id|external id")
_CORRELATION = Column("integer", "correlation")
_COLLECTIVE = Column("collective", "Collective name")
_TYPES, _SIZES = Column("list", "Input type"), Column("list", "Input Dims")

#: The columns of each kind.
COLUMNS: Final[dict[str, dict[str, Column]]] = {
    "op": {
        **_EVERY,
        "external_id": _EXTERNAL_ID,
        "sequence": Column("integer", "Sequence number"),
        "forward_thread": Column("integer", "Fwd thread id"),
        "collective": _COLLECTIVE,
        "types": _TYPES,
        "sizes": _SIZES,
        "strides": Column("list", "Input Strides"),
    },
    "call": {**_EVERY, "external_id": _EXTERNAL_ID, "correlation": _CORRELATION, "kind": Column("integer", "kind")},
    "gpu": {
        **_EVERY,
        "correlation": _CORRELATION,
        "device": Column("integer", "device"),
        "stream": Column("integer", "stream|sycl queue"),
        "bytes": Column("integer", "bytes"),
        "collective": _COLLECTIVE,
        "category": Column("sort"),
        "blocks_per_sm": Column("real", "blocks per SM"),
        "blocks": Column("product", "grid"),
    },
    "frame": {**_EVERY, "python_id": Column("integer", "Python id")},
    "label": {
        **_EVERY,
        "external_id": _EXTERNAL_ID,
        "types": _TYPES,
        "sizes": _SIZES,
    },
    "memory": {
        **_EVERY,
        "device_type": Column("integer", "Device Type"),
        "device_id": Column("integer", "Device Id"),
        "address": Column("integer", "Addr"),
        "size": Column("integer", "Bytes"),
        "allocated": Column("integer", "Total Allocated"),
        "reserved": Column("integer", "Total Reserved"),
    },
}
#: The columns that are lists.
LISTS: Final = ("types", "sizes", "strides")


class Names:
    """Distinct values, numbered in order of appearance."""

    def __init__(self) -> None:
        # `defaultdict`'s factory numbers new values: lookup and numbering in one step, without a Python call.
        self._codes: defaultdict[Any, int] = defaultdict(count().__next__)

    def code(self, values: Iterable[Any]) -> NDArray[np.int32]:
        """The number of each value, int32."""
        return np.array(list(map(self._codes.__getitem__, values)), dtype=np.int32)

    @property
    def values(self) -> list[Any]:
        """The distinct values, by number."""
        return list(self._codes)


class GrowingColumn:
    """A column that grows in place, so that parts and whole are never in memory together."""

    def __init__(self, dtype: DTypeLike) -> None:
        self._dtype = np.dtype(dtype)
        self._data = bytearray()

    def append(self, values: ArrayLike) -> None:
        """Append values that fit the column's dtype."""
        self._data += np.ascontiguousarray(values, dtype=self._dtype).data

    def array(self) -> NDArray[Any]:
        """All values, without a copy; nothing can be added afterwards."""
        return np.frombuffer(self._data, dtype=self._dtype)


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
                [ending.encode() for ending in ENDINGS.get(kind, ())],
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

    def counts(self) -> dict[tuple[str, str], int]:
        """How many events each phase and category has; those without a category are under the empty name."""
        numbers = np.frombuffer(self._counts, dtype=np.int64)
        return {
            (phase, category or ""): int(numbers[i])
            for i, (phase, category) in enumerate(self._sorts)
            if i < len(numbers) and numbers[i]
        }

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
    if is_raw_path(written):
        written = escape(written)
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
