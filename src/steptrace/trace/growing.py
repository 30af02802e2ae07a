"""Columns that grow part by part, without parts and whole ever being in memory together."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray


class GrowingColumn:
    """A column that grows in place. `dtype` is that of its values."""

    def __init__(self, dtype: DTypeLike) -> None:
        self._dtype = np.dtype(dtype)
        self._data = bytearray()

    def append(self, values: ArrayLike) -> None:
        """Add values, which the column's dtype must hold."""
        self._data += np.ascontiguousarray(values, dtype=self._dtype).data

    def array(self) -> NDArray[Any]:
        """All values, without a copy; nothing can be added any more."""
        return np.frombuffer(self._data, dtype=self._dtype)
