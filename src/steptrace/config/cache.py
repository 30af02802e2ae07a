"""Results of earlier calls, kept in a file: Snakemake reads the plan again in every process that it starts."""

import hashlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from steptrace.files import write_text

#: Entries that are kept; a few hundred are in use.
_MOST: Final = 5_000


class Cache:
    """Plain data by a key that stands for all that it was made of, kept in one file."""

    def __init__(self, path: Path) -> None:
        self._path, self._new, self._values = path, False, dict[str, Any]()
        with suppress(OSError, msgspec.DecodeError):  # none yet, or damaged
            self._values = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])

    def get(self, made_of: bytes, make: Callable[[], Any]) -> Any:
        """The value of a key, made now if it is new."""
        key = hashlib.sha256(made_of).hexdigest()
        if key not in self._values:
            self._values[key], self._new = make(), True
        return self._values[key]

    def save(self) -> None:
        """Write the file if there is something new."""
        with suppress(OSError):  # it saves time, no more
            if self._new:
                values = self._values if len(self._values) <= _MOST else {}
                write_text(self._path, msgspec.json.encode(values).decode())
