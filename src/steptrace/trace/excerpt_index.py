"""Where each event of a trace stands in time, in its file and among its threads: what an excerpt is chosen by.

The index holds a few integers an event; the text is read again, and only that of the chosen events is kept.
"""

from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steptrace.trace import names as naming
from steptrace.trace.columns import Ints, Mask, row_with
from steptrace.trace.decode import EventDecoder, event_texts
from steptrace.trace.events import FAR_FROM_ZERO_NS, MISSING, NO_ARGS, integers
from steptrace.trace.kinds import KINDS, Names
from steptrace.trace.names import GPU_CATEGORIES
from steptrace.trace.stream import CHUNK, EventStream

#: What an event is to an excerpt. SPAN is any span of the host that is no call and no Python frame, GPU_SPAN one that
#: is drawn with the GPU and is no work of it, MEMORY the allocator's instants, INSTANT any other.
OTHER, METADATA, SPAN, FRAME, CALL, GPU, GPU_SPAN, INSTANT, MEMORY, COUNTER, FLOW = range(11)

_GPU_SPANS = frozenset({"gpu_user_annotation", "cuda_sync"})
_OF_SPANS = {"call": CALL, "gpu": GPU, "frame": FRAME}
_OF_PHASES = {"M": METADATA, "C": COUNTER, **dict.fromkeys("iIR", INSTANT), **dict.fromkeys("stf", FLOW)}


@dataclass(frozen=True)
class EventIndex:
    """Every event of a file, one row each, in the file's order.

    `ts` and `end` are ns on the file's own clock; `kind` is one of this module's constants; `thread` and `name` are
    places in `threads` (pid and tid) and `names`; `correlation` joins calls and GPU work (`MISSING`: none); `flow` is
    the number of an arrow, -1 for other events, and `opens` tells its beginning; `size` is the text's, in bytes.
    `head` and `tail` are the text before and after the events.
    """

    ts: Ints
    end: Ints
    kind: NDArray[np.int8]
    thread: NDArray[np.int32]
    name: NDArray[np.int32]
    correlation: Ints
    flow: NDArray[np.int32]
    opens: Mask
    size: NDArray[np.int32]
    threads: list[tuple[Any, Any]]
    names: list[str]
    head: bytes = field(repr=False)
    tail: bytes = field(repr=False)

    @cached_property
    def process(self) -> NDArray[np.int32]:
        """The number of each event's process."""
        return Names().code(pid for pid, _ in self.threads)[self.thread]

    @cached_property
    def place(self) -> Ints:
        """One number for each thread and start that events have."""
        return np.unique(self.ts, return_inverse=True)[1].astype(np.int64) * len(self.threads) + self.thread

    @cached_property
    def is_step(self) -> Mask:
        """Whether each event marks a training step, on the host or with the GPU."""
        marks = np.array([naming.step_index(name) is not None for name in self.names], dtype=bool)
        found: Mask = marks[self.name] & ((self.kind == SPAN) | (self.kind == GPU_SPAN))
        return found

    @cached_property
    def is_copy(self) -> Mask:
        """Whether each event is a call that queues a copy."""
        copies = np.array([naming.is_async_copy(naming.call_name(name)) for name in self.names], dtype=bool)
        found: Mask = copies[self.name] & (self.kind == CALL)
        return found

    @cached_property
    def next_call(self) -> Ints:
        """For each call the row of its thread's next one, -1 for none and for other events."""
        rows = np.flatnonzero(self.kind == CALL)
        rows = rows[np.lexsort((self.correlation[rows], -self.end[rows], self.ts[rows], self.thread[rows]))]
        following = np.full(len(self.kind), -1, dtype=np.int64)
        same = self.thread[rows[1:]] == self.thread[rows[:-1]]
        following[rows[:-1][same]] = rows[1:][same]
        return following

    @cached_property
    def launched(self) -> Ints:
        """For each GPU activity the start of the call that launched it; 0 where that is unknown, and elsewhere."""
        call = row_with(np.where(self.kind == CALL, self.correlation, 0), self.correlation)
        return np.where((self.kind == GPU) & (call >= 0), self.ts[np.maximum(call, 0)], 0)


def read_index(path: Path, *, chunk: int = CHUNK) -> EventIndex:
    """Read the index of a trace file, `chunk` bytes at a time.

    Raises:
        TraceError: the file is missing, empty, damaged, no JSON, or no trace.
        TruncatedTraceError: its end is missing.
    """
    stream, decoder = EventStream(path, chunk=chunk), EventDecoder(path)
    sorts, threads, names, flows = Names(), Names(), Names(), Names()
    parts: list[dict[str, NDArray[Any]]] = []
    for text in stream:
        events = decoder.decode(text)
        ts, dur = (decoder.to_ns([getattr(event, key) for event in events]) for key in ("ts", "dur"))
        arrows = np.array([event.ph in ("s", "t", "f") for event in events], dtype=bool)
        flow = np.full(len(events), -1, dtype=np.int32)
        flow[arrows] = flows.code((e.cat, bytes(e.id).strip(b'"')) for e in events if e.ph in ("s", "t", "f"))
        parts.append(
            {
                "ts": ts,
                "end": ts + np.maximum(dur, 0),
                "kind": sorts.code(map(attrgetter("ph", "cat"), events)),
                "thread": threads.code(map(attrgetter("pid", "tid"), events)),
                "name": names.code(map(attrgetter("name"), events)),
                "correlation": integers([(event.args or NO_ARGS).correlation for event in events]),
                "flow": flow,
                "opens": np.array([event.ph == "s" for event in events], dtype=bool),
                "size": np.array([len(memoryview(raw)) for raw in event_texts(text)], dtype=np.int32),
            }
        )
    columns = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
    kinds = np.array([_kind(phase, category) for phase, category in sorts.values], dtype=np.int8)
    columns["kind"] = kinds[columns["kind"]]
    # As the reader has it: the profiler lost the time of what stands at 0 among far later events.
    timed = columns["kind"] != METADATA
    if int(columns["ts"].max()) >= FAR_FROM_ZERO_NS:
        columns["kind"][timed & (columns["ts"] == 0)] = OTHER
    columns["kind"][columns["ts"] == MISSING] = OTHER
    return EventIndex(**columns, threads=threads.values, names=names.values, head=stream.head, tail=stream.tail)


def _kind(phase: str, category: str | None) -> int:
    if phase != "X":
        return MEMORY if category == "cpu_instant_event" else _OF_PHASES.get(phase, OTHER)
    if category in GPU_CATEGORIES:
        return GPU
    return GPU_SPAN if category in _GPU_SPANS else _OF_SPANS.get(KINDS.get(category or "", ""), SPAN)
