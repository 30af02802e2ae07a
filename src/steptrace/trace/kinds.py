"""Which of Kineto's events are read as what: their columns, which grow part by part, and numbers for what repeats."""

from collections import defaultdict
from collections.abc import Iterable
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from steptrace.trace.names import GPU_CATEGORIES

#: The kind of event each of Kineto's categories is, old spellings included. The others are only counted.
KINDS = {
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

#: The integer arguments kept of each kind.
INTEGER_ARGS = {
    "op": ("external_id", "sequence", "forward_thread"),
    "call": ("external_id", "correlation", "kind"),
    "gpu": ("correlation", "device", "stream", "bytes"),
    "frame": ("python_id",),
    "label": ("external_id",),
    "memory": ("device_type", "device_id", "address", "size", "allocated", "reserved"),
}

#: What else is kept of some kinds.
OTHER_COLUMNS = {
    "op": ("collective", "dtypes"),
    "gpu": ("collective", "category", "blocks_per_sm", "blocks"),
    "label": ("bytes",),
}

#: The phase of a kind's events, where it is not that of complete ones.
PHASES = {"memory": "i"}


def columns_of(kind: str) -> tuple[str, ...]:
    """The names of a kind's columns."""
    return ("ts", "dur", "thread", "name", *INTEGER_ARGS[kind], *OTHER_COLUMNS.get(kind, ()))


_SMALL = frozenset({"thread", "name", "collective", "dtypes", "category"})
_REAL = frozenset({"blocks_per_sm", "blocks"})


def dtype_of(column: str) -> type[np.int32 | np.int64 | np.float64]:
    """The dtype of a column, of whichever kind."""
    return np.int32 if column in _SMALL else np.float64 if column in _REAL else np.int64


class Names:
    """Distinct values, numbered in order of appearance."""

    def __init__(self) -> None:
        # A missing value gets the next number: looking up and numbering are one step, without a Python call.
        self._codes: defaultdict[Any, int] = defaultdict(count().__next__)

    def code(self, values: Iterable[Any]) -> NDArray[np.int32]:
        """The number of each value, int32."""
        return np.array(list(map(self._codes.__getitem__, values)), dtype=np.int32)

    @property
    def values(self) -> list[Any]:
        """The distinct values, by number."""
        return list(self._codes)


class GrowingColumn:
    """A column that grows in place, parts and whole never in memory together. `dtype` is that of its values."""

    def __init__(self, dtype: DTypeLike) -> None:
        self._dtype = np.dtype(dtype)
        self._data = bytearray()

    def append(self, values: ArrayLike) -> None:
        """Add values, which the column's dtype must hold."""
        self._data += np.ascontiguousarray(values, dtype=self._dtype).data

    def array(self) -> NDArray[Any]:
        """All values, without a copy; nothing can be added any more."""
        return np.frombuffer(self._data, dtype=self._dtype)
