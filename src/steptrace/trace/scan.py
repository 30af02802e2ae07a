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
from steptrace.trace.decode import (
    COLLECTIVE_ARGS,
    COPY_DIRECTION,
    LATEST_NS,
    CollectiveArgs,
    CopyArgs,
    decode_leniently,
    described,
    plain_list,
    plain_text,
    whole_characters,
)
from steptrace.trace.mend import escape, is_raw_path
from steptrace.trace.names import GPU_CATEGORIES

#: The kind of event by Kineto's category, old spellings included. Events of categories that are neither here nor have
#: one of `ENDINGS` are only counted.
KINDS: Final = {
    "cpu_op": "op",
    "Operator": "op",
    "operator": "op",
    "cuda_runtime": "call",
    "cuda_driver": "call",
    "Runtime": "call",
    "runtime": "call",
    "python_function": "frame",
    "user_annotation": "label",
    "cpu_instant_event": "memory",
    "cuda_sync": "wait",
    **dict.fromkeys(GPU_CATEGORIES, "gpu"),
}

#: Endings of further categories of a kind: `xpu_runtime`, `mtia_runtime`, `privateuse1_driver`.
ENDINGS: Final = {"call": ("_runtime", "_driver")}

#: The phases of a kind's events, if they are not complete events alone. PyTorch's own exporter (`use_python_export`)
#: writes instants as complete events.
PHASES: Final = {"memory": ("i", "X")}

#: The forms of columns (ext/compiled/scan.h says what each holds) and their dtypes.
FORMS: Final[dict[str, type[np.int32 | np.int64 | np.float64]]] = {
    **dict.fromkeys(("thread", "name", "sort", "list", "convolution", "collective", "text"), np.int32),
    **dict.fromkeys(("start", "length", "integer"), np.int64),
    **dict.fromkeys(("real", "product"), np.float64),
}


class ScanColumn(NamedTuple):
    """A column's form, and the argument that it is read from, if any; bars separate the names of one argument."""

    form: str
    argument: str = ""

    @property
    def dtype(self) -> type[np.int32 | np.int64 | np.float64]:
        """The dtype of its values."""
        return FORMS[self.form]


_OF_EACH_KIND = {
    "ts": ScanColumn("start"),
    "dur": ScanColumn("length"),
    "thread": ScanColumn("thread"),
    "name": ScanColumn("name"),
}
_EXTERNAL_ID = ScanColumn("integer", "External id|external id")
_CORRELATION = ScanColumn("integer", "correlation")
_COLLECTIVE = ScanColumn("collective", f"{COLLECTIVE_ARGS['name']}|{COPY_DIRECTION}")
#: Whether an event has the argument by which Kineto marks one that was still running when the recording ended.
_UNFINISHED = ScanColumn("collective", "finished")
_TYPES = ScanColumn("list", "Input type")
_SIZES = ScanColumn("list", "Input Dims")

#: The columns of each kind.
COLUMNS: Final[dict[str, dict[str, ScanColumn]]] = {
    "op": {
        **_OF_EACH_KIND,
        "external_id": _EXTERNAL_ID,
        "sequence": ScanColumn("integer", "Sequence number"),
        "forward_thread": ScanColumn("integer", "Fwd thread id"),
        "collective": _COLLECTIVE,
        "types": _TYPES,
        "sizes": _SIZES,
        "strides": ScanColumn("list", "Input Strides"),
        "settings": ScanColumn("convolution", "Concrete Inputs"),
        "unfinished": _UNFINISHED,
    },
    "call": {
        **_OF_EACH_KIND,
        "external_id": _EXTERNAL_ID,
        "correlation": _CORRELATION,
        "kind": ScanColumn("integer", "kind"),
    },
    "gpu": {
        **_OF_EACH_KIND,
        "correlation": _CORRELATION,
        "device": ScanColumn("integer", "device"),
        "stream": ScanColumn("integer", "stream|sycl queue|streamId"),
        "bytes": ScanColumn("integer", "bytes"),
        "collective": _COLLECTIVE,
        "annotation": ScanColumn("text", "annotation|str|name"),
        "graph": ScanColumn("integer", "graph id"),
        "category": ScanColumn("sort"),
        "blocks_per_sm": ScanColumn("real", "blocks per SM"),
        "blocks": ScanColumn("product", "grid"),
    },
    "frame": {
        **_OF_EACH_KIND,
        "python_id": ScanColumn("integer", "Python id"),
        "unfinished": _UNFINISHED,
    },
    "label": {
        **_OF_EACH_KIND,
        "external_id": _EXTERNAL_ID,
        "types": _TYPES,
        "sizes": _SIZES,
        "unfinished": _UNFINISHED,
    },
    "wait": {**_OF_EACH_KIND, "correlation": _CORRELATION},
    "memory": {
        **_OF_EACH_KIND,
        "device_type": ScanColumn("integer", "Device Type"),
        "device_id": ScanColumn("integer", "Device Id"),
        "address": ScanColumn("integer", "Addr"),
        "size": ScanColumn("integer", "Bytes"),
        "allocated": ScanColumn("integer", "Total Allocated"),
        "reserved": ScanColumn("integer", "Total Reserved"),
    },
}
#: The columns that are lists.
LISTS: Final = ("types", "sizes", "strides", "settings")


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

_STRING = msgspec.json.Decoder(str)
_ID = msgspec.json.Decoder(int | str | None)
_MEMORY_EVENT = "[memory]"
_BARE_COPY = "Memcpy"


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
        self._numbers = numbers
        self._value = value
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
        self.names = Names()
        self.threads = Names()
        self.collectives = Names()
        self.columns = {
            kind: {name: GrowingColumn(column.dtype) for name, column in columns.items()}
            for kind, columns in COLUMNS.items()
        }
        self.thread_names: dict[Thread, str] = {}
        categories = {kind: [category for category in KINDS if KINDS[category] == kind] for kind in COLUMNS}
        layout = [
            (
                [(c.form, c.argument.encode(), np.dtype(c.dtype).itemsize) for c in columns.values()],
                [
                    f"{category}\0{phase}".encode()
                    for category in categories[kind]
                    for phase in PHASES.get(kind, ("X",))
                ],
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
        sorts = (sort.decode().split("\0")[0] for _, sorts_of_kind, _ in layout for sort in sorts_of_kind)
        self._of_sorts = self.names.code(GPU_CATEGORIES.get(category, "") for category in sorts)

    def take(self, chunk: bytes) -> tuple[int, bool]:
        """Append the rows of the whole events that a text begins with: see `EventStream.read`.

        Raises:
            TraceError: a string in it is no JSON.
        """
        columns, named, spans, self._counts, new, taken, ended = self._scanner.scan(chunk)
        try:
            for lookup, texts in zip((self._of_names, self._of_threads, self._of_lists), new, strict=False):
                lookup.add(texts)
            self._sorts += map(_sort, new[3])
            written = [decode_leniently(_ARGS, chunk[begin:end]) for begin, end in spans]
            events = [decode_leniently(_THREAD_NAME, chunk[begin:end]) for begin, end in named]
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise TraceError(f"invalid JSON among the events ({error})", where=self._path) from error
        descriptions = [described(args) for args in written]
        unfinished = np.array([str(args.get("finished")).lower() == "false" for args in written] + [False], dtype=bool)
        for kind, scanned in zip(COLUMNS, columns, strict=True):
            for name, values in self._columns(kind, scanned, descriptions, unfinished).items() if scanned[0] else ():
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

    def _columns(
        self,
        kind: str,
        data_of_columns: list[bytes],
        descriptions: list[CollectiveArgs | CopyArgs],
        unfinished: NDArray[np.bool_],
    ) -> dict[str, NDArray[Any]]:
        """The columns of a kind's events in a chunk.

        Args:
            kind: the kind.
            data_of_columns: the scanner's bytes of each column.
            descriptions: what the arguments describe that columns of the form `collective` number.
            unfinished: whether these arguments mark an event as unfinished; and False, for events without any.
        """
        columns: dict[str, NDArray[Any]] = {
            name: np.frombuffer(data, column.dtype)
            for (name, column), data in zip(COLUMNS[kind].items(), data_of_columns, strict=True)
        }
        columns["name"] = self._of_names[columns["name"]]
        columns["thread"] = self._of_threads[columns["thread"]]
        columns |= {name: self._of_lists[columns[name]] for name in LISTS if name in columns}
        if "annotation" in columns:
            written = columns["annotation"]
            columns["annotation"] = np.where(written >= 0, self._of_names[np.maximum(written, 0)], np.int32(-1))
        if "category" in columns:
            columns["category"] = self._of_sorts[columns["category"]]
        if "unfinished" in columns:
            columns["unfinished"] = unfinished[columns["unfinished"]].astype(np.int32)
        if "collective" in columns:
            self._name_copies(columns, descriptions)
            columns["collective"] = np.append(self.collectives.code(descriptions), np.int32(-1))[columns["collective"]]
        if kind == "memory":
            allocator = columns["name"] == self.names.code([_MEMORY_EVENT])
            columns = {name: values[allocator] for name, values in columns.items()}
        return columns

    def _name_copies(self, columns: dict[str, NDArray[Any]], descriptions: list[CollectiveArgs | CopyArgs]) -> None:
        """Give copies whose direction is an argument the name that says it; such arguments describe no collective."""
        is_copy = np.array([isinstance(args, CopyArgs) for args in descriptions] + [False], dtype=bool)
        copies = is_copy[columns["collective"]]
        rows = np.flatnonzero(copies & (columns["name"] == self.names.code([_BARE_COPY])))
        written = [descriptions[number] for number in columns["collective"][rows].tolist()]
        columns["name"][rows] = self.names.code(args.name for args in written if isinstance(args, CopyArgs))
        columns["collective"] = np.where(copies, np.int32(-1), columns["collective"])


def _text(written: bytes) -> str:
    """The text between a JSON string's quotation marks, decoded; invalid UTF-8 becomes U+FFFD."""
    if is_raw_path(written):
        written = escape(written)
    text = f'"{written.decode(errors="replace")}"'.encode()
    try:
        return _STRING.decode(text)
    except msgspec.DecodeError:
        return _STRING.decode(whole_characters(text))


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
