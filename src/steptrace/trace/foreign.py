"""Recognises files that are not traces of PyTorch's profiler by their first bytes or their name, and says what to do.

JSON of other tools is recognised by its keys. A zip archive with one trace is read; `files` does that.
"""

import re
from collections.abc import Iterable, Mapping
from itertools import chain
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
#: By a part of the name.
_IN_NAME: Final[dict[str, Foreign]] = {
    ".tfevents.": Foreign("a log for TensorBoard, which holds no trace", f"give the .pt.trace.json, or {_RECORD}"),
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
        rb'\s*\{.{0,2000}"entries"\s*:\s*\[\s*\{.{0,2000}"(?:collective_seq_id|profiling_name)"\s*:',
        Foreign("a dump of PyTorch's flight recorder, which holds collectives alone", _RECORD),
    ),
    (
        rb'\s*\{(?=.{0,2000}"(?:device_traces|external_annotations)"\s*:).{0,2000}"segments"\s*:\s*\[',
        Foreign(
            "a memory snapshot of PyTorch as JSON",
            "give the pickle that torch.cuda.memory._dump_snapshot wrote: steptrace reads it",
        ),
    ),
    (
        rb'\s*\[\s*\{(?=.{0,2000}"metrics"\s*:).{0,2000}"frame"\s*:\s*\{',
        Foreign("a profile of Triton's Proton (a call tree without times)", _RECORD),
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
_OF_BROWSER: Final = Foreign("a trace of a browser (Chrome's DevTools or tracing)", _RECORD)
_OF_COMPILER: Final = Foreign(
    "the times of torch.compile's own phases (TORCH_TRACE, tlparse)", f"open it in Perfetto; for GPU work, {_RECORD}"
)
#: Chrome traces of other tools, by a category that only one of them writes.
_CATEGORIES: Final[dict[str, Foreign]] = {
    **dict.fromkeys(("devtools.timeline", "toplevel", "blink.user_timing", "v8"), _OF_BROWSER),
    "dynamo_timed": _OF_COMPILER,
    "DataFlow": Foreign("a timeline of TensorFlow 1 (tf.python.client.timeline)", "open it in chrome://tracing"),
    "triton": Foreign("a trace of Triton's Proton, of the parts of one kernel", f"open it in Perfetto; else {_RECORD}"),
    "fee": _PRODUCERS["viztracer_metadata"],
    "hpu_op": Foreign("a trace of Intel Gaudi's profiler, which steptrace does not read", "open it in Perfetto"),
}
#: A process of XLA's profiler, which JAX and TensorFlow use. Its export for Perfetto has no metadata.
_XLA_PROCESS: Final = re.compile(rb'"/(?:host|device):(?:CPU|GPU|TPU|metadata)')
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
    name = path.name.lower()
    by_name = (kind for end, kind in _ENDINGS.items() if name.endswith(end))
    return next(by_name, None) or next((kind for part, kind in _IN_NAME.items() if part in name), None)


def foreign_json(beginning: bytes) -> Foreign | None:
    """The kind of a JSON file without events, by the text that it begins with; None if it is not known."""
    # Few files get here, so the patterns are compiled only then.
    return next((kind for pattern, kind in _JSON if re.match(pattern, beginning[:_LOOKED_AT], re.DOTALL)), None)


def other_producer(metadata: Mapping[str, Any], categories: Iterable[str], beginning: bytes) -> Foreign | None:
    """The tool that wrote a Chrome trace; None if it is not known.

    Args:
        metadata: the keys beside its events.
        categories: of its events.
        beginning: the beginning of its text.
    """
    inner = metadata.get("metadata")
    keys = metadata.keys() | (inner.keys() if isinstance(inner, Mapping) else set())
    by_metadata = (kind for key, kind in _PRODUCERS.items() if key in keys)
    # A browser's categories are lists: `disabled-by-default-v8.cpu_profiler,v8`.
    parts = {part for category in categories for part in category.split(",")}
    by_category = (kind for category, kind in _CATEGORIES.items() if category in parts)
    by_process = (_PRODUCERS["highres-ticks"] for _ in _XLA_PROCESS.finditer(beginning))
    return next(chain(by_metadata, by_category, by_process), None)
