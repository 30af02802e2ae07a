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

from steptrace.analysis.copies import copy_rates
from steptrace.analysis.streams import queue_lengths
from steptrace.files import replace_atomically
from steptrace.trace.decode import ns_to_us
from steptrace.trace.event_stream import EventStream
from steptrace.trace.model import Trace

_BYTES_PER_GB = 1e9


def write_counters(traces: Sequence[Trace], out: Path) -> list[Path]:
    """Write `out/trace<k>.json.gz` for each trace with GPU work, k counting as in summary.json; returns the files."""
    written = []
    for k, trace in enumerate(traces):
        if len(trace.kernels):
            out.mkdir(parents=True, exist_ok=True)
            path = out / f"trace{k}.json.gz"
            replace_atomically(path, partial(_write, trace))
            written.append(path)
    return written


def counter_events(trace: Trace) -> Iterator[bytes]:
    """The counters as events of the trace's own clock, one track a stream and one a kind of copy, by GPU."""
    base = trace.meta.file_base_ns
    for key, rows in queue_lengths(trace).groupby(["device", "stream"], sort=True):
        device, stream = cast("tuple[int, int]", key)
        yield from _track(f"queue length, stream {stream}", device, base, rows["ts"], rows["length"])
    for key, rows in copy_rates(trace).groupby(["device", "kind"], sort=True):
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


def _write(trace: Trace, path: Path) -> None:
    with igzip.open(path, "wb", compresslevel=2) as file:  # type: ignore[no-untyped-call]
        EventStream(trace.path).copy_with(counter_events(trace), cast(BinaryIO, file))
