"""What a file is that is no trace of PyTorch's profiler, by how it begins or by its name, and what to do with it.

A zip archive with one trace is read; `files` does that.
"""

from pathlib import Path
from typing import Final, NamedTuple


class Foreign(NamedTuple):
    """A kind of file, and what to do with it."""

    what: str
    next_step: str


_RECORD: Final = "record with torch.profiler and its export_chrome_trace"
_NSIGHT: Final = Foreign("a report of Nsight Systems, which only its own tools read", _RECORD)
_PERFETTO: Final = Foreign(
    "a trace in Perfetto's binary format", f"export it as Chrome's JSON (`traceconv json`), or {_RECORD}"
)
_PICKLE: Final = Foreign(
    "a pickle, such as a memory snapshot of PyTorch",
    f"open a memory snapshot at docs.pytorch.org/memory_viz; for a trace, {_RECORD}",
)
_PACKED: Final = "unpack it; steptrace reads .json, .json.gz, and .zip with one trace"

#: By the first bytes.
_BEGINNINGS: Final[tuple[tuple[bytes, Foreign], ...]] = (
    *((b"\x80" + bytes([version]), _PICKLE) for version in range(2, 6)),
    (b"SQLite format 3\0", Foreign("a database (SQLite), such as Nsight Systems exports", _RECORD)),
    (b"\x28\xb5\x2f\xfd", Foreign("a file packed with zstd", _PACKED)),
    (b"\xfd7zXZ\0", Foreign("a file packed with xz", _PACKED)),
    (b"BZh", Foreign("a file packed with bzip2", _PACKED)),
    (b"7z\xbc\xaf\x27\x1c", Foreign("a 7-Zip archive", _PACKED)),
    (b"Rar!", Foreign("a RAR archive", _PACKED)),
    (b"<", Foreign("a page or another file with markup, no JSON", "download the trace itself, or record it again")),
    (b"version https://git-lfs", Foreign("a pointer of Git LFS, not the file itself", "run `git lfs pull`")),
)
#: By the end of the name.
_ENDINGS: Final[dict[str, Foreign]] = {
    **dict.fromkeys((".nsys-rep", ".qdrep", ".qdstrm"), _NSIGHT),
    ".ncu-rep": Foreign("a report of Nsight Compute, which only its own tools read", _RECORD),
    **dict.fromkeys((".pftrace", ".perfetto-trace", ".perfetto"), _PERFETTO),
    **dict.fromkeys((".pickle", ".pkl"), _PICKLE),
    ".xplane.pb": Foreign("a profile of JAX or TensorFlow", "open it in TensorBoard or XProf"),
    ".tar": Foreign("a tar archive", _PACKED),
}
#: Where a tar archive says that it is one.
_TAR: Final = (257, b"ustar")
#: Bytes that are needed to tell.
BEGINNING: Final = 512


def foreign(path: Path, beginning: bytes) -> Foreign | None:
    """What a file is that begins so and is no JSON; None if that is not known."""
    for begins, kind in _BEGINNINGS:
        if beginning.startswith(begins):
            return kind
    offset, mark = _TAR
    if beginning[offset:].startswith(mark):
        return _ENDINGS[".tar"]
    return next((kind for end, kind in _ENDINGS.items() if path.name.lower().endswith(end)), None)
