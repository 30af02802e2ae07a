"""Recognises files that are not traces of PyTorch's profiler by their first bytes or their name, and says what to do.

JSON of other tools is recognised by its keys. A zip archive with one trace is read; `files` does that.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple


class Foreign(NamedTuple):
    """A kind of file that is not a trace, and what to do with it."""

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
    (b"\x04\x22\x4d\x18", Foreign("a file packed with lz4", _PACKED)),
    (b"\xfd7zXZ\0", Foreign("a file packed with xz", _PACKED)),
    (b"BZh", Foreign("a file packed with bzip2", _PACKED)),
    (b"7z\xbc\xaf\x27\x1c", Foreign("a 7-Zip archive", _PACKED)),
    (b"Rar!", Foreign("a RAR archive", _PACKED)),
    *((b"\x78" + level, Foreign("a zlib stream", _PACKED)) for level in (b"\x01", b"\x5e", b"\x9c", b"\xda")),
    (
        b'"{',
        Foreign("a trace inside a JSON string: it was encoded twice", "decode it once (`jq -r . FILE > TRACE.json`)"),
    ),
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
_NSIGHT_JSON: Final = Foreign("an export of Nsight Systems (JSON), which names neither operators nor steps", _RECORD)
#: JSON without events, by a pattern of the text that it begins with.
_JSON: Final[tuple[tuple[bytes, Foreign], ...]] = (
    (
        rb'\s*\{\s*"rocprofiler-sdk-tool"\s*:',
        Foreign(
            "the JSON of rocprofv3, which names neither operators nor steps",
            f"{_RECORD}; for Perfetto alone, use rocprofv3's --output-format pftrace",
        ),
    ),
    (rb'\s*\{\s*"Type"\s*:\s*\d+\s*,\s*"\w+Event"\s*:', _NSIGHT_JSON),
    (rb'\s*\{.{0,2000}"(?:TraceProcessEvent|CudaEvent|NvtxEvent)"\s*:\s*\{', _NSIGHT_JSON),
    (
        rb'\s*\{\s*"schema"\s*:\s*"[^"]*"\s*,.{0,2000}"nodes"\s*:\s*\[',
        Foreign(
            "an execution trace of PyTorch (ExecutionTraceObserver), which says what was called and not when",
            "give the trace that torch.profiler wrote beside it",
        ),
    ),
    (
        rb'\s*\{\s*"workload_graph"\s*:',
        Foreign("an execution trace of Chakra, which says what to call and not when it was called", _RECORD),
    ),
    (
        rb"\s*\[\s*\[\s*[\d\]]",
        Foreign(
            "a list of numbers, such as a memory timeline of torch.profiler (export_memory_timeline)",
            "give the trace itself (export_chrome_trace), or a memory snapshot (torch.cuda.memory._dump_snapshot)",
        ),
    ),
    (
        rb'\s*\{(?=.{0,2000}"pg_config"\s*:).{0,2000}"(?:entries|pg_status)"\s*:',
        Foreign("a dump of PyTorch's flight recorder, which holds collectives alone", _RECORD),
    ),
    (
        rb'\s*\{(?=.{0,2000}"callFrame"\s*:).{0,2000}"nodes"\s*:\s*\[',
        Foreign("a profile of JavaScript (Chrome or Node)", _RECORD),
    ),
    (rb"\s*\{\s*'\w+'\s*:", Foreign("a printed dictionary of Python, not JSON", "write it with json.dump")),
    (rb'\s*\{.{0,2000}"https://www\.speedscope\.app/', Foreign("a profile for speedscope", _RECORD)),
    (
        rb'\s*\{(?:[^{}\[\]]|\{[^{}]*\}){0,2000}"ph"\s*:',
        Foreign("one event a line (JSON Lines)", 'put the events into one array: {"traceEvents": [event, event, ...]}'),
    ),
)
#: Chrome traces of other tools, by a key of the metadata. XLA's profiler says that its ticks are of high resolution.
_PRODUCERS: Final[dict[str, Foreign]] = {
    "highres-ticks": Foreign("a profile of JAX or TensorFlow", "open it in TensorBoard, XProf or Perfetto"),
    "viztracer_metadata": Foreign(
        "a profile of VizTracer", f"open it with vizviewer; for GPU work and operators, {_RECORD}"
    ),
}
#: The position of a tar archive's signature.
_TAR: Final = (257, b"ustar")
#: How many bytes at the beginning of JSON are looked at.
_LOOKED_AT: Final = 8_192


def foreign(path: Path, beginning: bytes) -> Foreign | None:
    """The kind of a file that is not JSON, by its first bytes; None if it is not known."""
    for begins, kind in _BEGINNINGS:
        if beginning.startswith(begins):
            return kind
    offset, mark = _TAR
    if beginning[offset:].startswith(mark):
        return _ENDINGS[".tar"]
    return next((kind for end, kind in _ENDINGS.items() if path.name.lower().endswith(end)), None)


def foreign_json(beginning: bytes) -> Foreign | None:
    """The kind of a JSON file without events, by the text that it begins with; None if it is not known."""
    # Few files get here, so the patterns are compiled only then.
    return next((kind for pattern, kind in _JSON if re.match(pattern, beginning[:_LOOKED_AT], re.DOTALL)), None)


def other_producer(metadata: Mapping[str, Any]) -> Foreign | None:
    """The tool that wrote a Chrome trace, by the metadata beside its events; None if it is not known."""
    inner = metadata.get("metadata")
    keys = metadata.keys() | (inner.keys() if isinstance(inner, Mapping) else set())
    return next((kind for key, kind in _PRODUCERS.items() if key in keys), None)
