"""Names: suggesting the one that was meant, and making one that is safe as a file name."""

import difflib
import hashlib
import re
from collections.abc import Iterable

#: Longest file name made from a variant's name; most file systems end at 255 bytes.
_LONGEST = 120


def near(name: str, options: Iterable[str]) -> str:
    """Return "did you mean 'x'?" if one of `options` is close to `name`, else the list of options."""
    names = sorted(options)
    every = f"choose one of: {', '.join(names)}" if names else "none is defined"
    return meant(name, names, likeness=0.6) or every


def meant(name: str, options: Iterable[str], *, likeness: float = 0.8) -> str | None:
    """Return "did you mean 'x'?" if one of `options` is close to `name`: by `difflib`, from 0 to 1 for the same."""
    close = difflib.get_close_matches(name, sorted(options), n=1, cutoff=likeness)
    return f"did you mean '{close[0]}'?" if close else None


def file_safe(text: str) -> str:
    """Return `text` with every run of characters but letters, digits, `_`, `.`, `+`, `-` replaced by one `_`."""
    return re.sub(r"[^A-Za-z0-9_.+-]+", "_", text).strip("_.") or "_"


def shorten(name: str) -> str:
    """Return `name`, or its beginning with a hash of the whole if it is too long for a file name."""
    if len(name) <= _LONGEST:
        return name
    return f"{name[: _LONGEST - 11]}-{hashlib.sha256(name.encode()).hexdigest()[:10]}"
