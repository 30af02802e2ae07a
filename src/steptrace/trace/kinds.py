"""The kinds of Kineto's events, and the columns of each kind that the scanner fills.

Integers that an event does not have are `MISSING`, reals NaN. Columns grow part by part.
"""

from collections import defaultdict
from collections.abc import Iterable
from itertools import count
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from steptrace.trace.names import GPU_CATEGORIES

#: Kineto's category -> kind of event, old spellings included. Other categories are only counted.
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

#: The phase of a kind's events, if they are not complete events.
PHASES: Final = {"memory": "i"}

#: The forms of columns (ext/compiled/scan.h says what each holds) and their dtypes.
FORMS: Final[dict[str, type[np.int32 | np.int64 | np.float64]]] = {
    **dict.fromkeys(("thread", "name", "sort", "list", "collective"), np.int32),
    **dict.fromkeys(("start", "length", "integer"), np.int64),
    **dict.fromkeys(("real", "product"), np.float64),
}


class Column(NamedTuple):
    """A column's form, and the argument it is read from, if any."""

    form: str
    argument: str = ""

    @property
    def dtype(self) -> type[np.int32 | np.int64 | np.float64]:
        """The dtype of its values."""
        return FORMS[self.form]


_EVERY = {"ts": Column("start"), "dur": Column("length"), "thread": Column("thread"), "name": Column("name")}
_EXTERNAL_ID = Column("integer", "External id")
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
        "stream": Column("integer", "stream"),
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
