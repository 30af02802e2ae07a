"""A copy of a trace with counter tracks: the queue of each stream, and the rate of each kind of copy.

The copy opens in the same viewers (Perfetto, chrome://tracing). It is streamed: the counters come first, then the
original's text unchanged; viewers sort by time.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO, cast

import msgspec
import pandas as pd
from isal import igzip

from steptrace.analysis.common.analysis import Analysis
from steptrace.files import replace_atomically
from steptrace.trace.events import ns_to_us
from steptrace.trace.stream import EventStream

_BYTES_PER_GB = 1e9
_QUEUE_LENGTH = "queue length, stream "


def write_counters(analyses: Sequence[Analysis], out: Path) -> list[Path]:
    """Write `out/trace<k>.json.gz` for each trace with GPU work, k counting as in summary.json; returns the files."""
    written = []
    for k, analysis in enumerate(analyses):
        if len(analysis.trace.kernels):
            out.mkdir(parents=True, exist_ok=True)
            path = out / f"trace{k}.json.gz"
            replace_atomically(path, partial(_write, analysis))
            written.append(path)
    return written


def has_counters(path: Path) -> bool:
    """Whether `write_counters` wrote this file: its first events are counters."""
    try:
        with igzip.open(path, "rb") as file:  # type: ignore[no-untyped-call]
            return f'"name":"{_QUEUE_LENGTH}'.encode() in file.read(1 << 20)
    except (OSError, EOFError):
        return False


def counter_events(analysis: Analysis) -> Iterator[bytes]:
    """The counters as events of the trace's own clock, one track a stream and one a kind of copy, by GPU."""
    base = analysis.trace.meta.file_base_ns
    for key, rows in analysis.tables["queue_lengths"].groupby(["device", "stream"], sort=True):
        device, stream = cast("tuple[int, int]", key)
        yield from _track(f"{_QUEUE_LENGTH}{stream}", device, base, rows["ts"], rows["length"])
    for key, rows in analysis.tables["copy_rates"].groupby(["device", "kind"], sort=True):
        device, kind = cast("tuple[int, str]", key)
        rate = rows["bytes_per_second"] / _BYTES_PER_GB
        yield from _track(f"GB/s, {kind}", device, base, rows["ts"], rate)


def _track(
    name: str, device: int, base: int, ts: "pd.Series[int]", values: "pd.Series[int] | pd.Series[float]"
) -> Iterator[bytes]:
    """The events of one track, under the process number that Kineto gives the GPU."""
    quoted = msgspec.json.encode(name).decode()
    for at, value in zip(ts.tolist(), values.tolist(), strict=True):
        us = ns_to_us(base + at)
        yield f'{{"ph":"C","name":{quoted},"pid":{device},"ts":{us},"args":{{"value":{value}}}}}'.encode()


def _write(analysis: Analysis, path: Path) -> None:
    with igzip.open(path, "wb", compresslevel=2) as file:  # type: ignore[no-untyped-call]
        EventStream(analysis.path).copy_with(counter_events(analysis), cast(BinaryIO, file))
