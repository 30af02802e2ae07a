"""The figures of a memory snapshot: blocks that are live at the peak and at the end by line, fragmentation, and growth.

The history is a list of events, oldest first; the allocator keeps the last ones. A block that is released, or live at
the end, without an allocation in the history was allocated before it. Bytes are those that the program asked for, as in
the events; the allocator rounds them up.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple

from steptrace.documents.snapshot import (
    Category,
    Growth,
    LiveLine,
    MemorySnapshot,
    MemorySnapshots,
    OutOfMemory,
    SnapshotDevice,
)
from steptrace.snapshot.read import (
    Annotation,
    Block,
    MemoryEvent,
    Segment,
    Snapshot,
    SnapshotError,
    SnapshotFrame,
    frames_of,
    read_snapshot,
)

#: Most lines in snapshot.json, and points of a curve.
MOST: Final = 100
_POINTS: Final = 400
_ALLOCATED: Final = "active_allocated"
_INACTIVE: Final = "inactive"
#: The events that end a block, the preferred one first: after `free_completed` it can be used again. PyTorch 1.13 has
#: `free`.
_ENDS: Final = ("free_completed", "free_requested", "free")
_GROWS: Final = frozenset({"segment_alloc", "segment_map"})
_SHRINKS: Final = frozenset({"segment_free", "segment_unmap"})
#: Files of installed packages, of Python itself, and of steptrace where it calls a measured program.
_INSTALLED: Final = re.compile(
    r"/(site|dist)-packages/|/lib/python3\.\d+/|/steptrace/(engine|launch|predict)/|^<frozen "
)
_NATIVE: Final = re.compile(r"\.(c|cc|cpp|cxx|cu|cuh|h|hpp|pyx|so)$")
_OPTIMIZER_FILE: Final = "/torch/optim/"
_AUTOGRAD_FILE: Final = "/torch/autograd/"
_LOADER_FILE: Final = "/torch/utils/data/"
_NN_FILE: Final = "/torch/nn/"
_MODULE_FILE: Final = "/torch/nn/modules/module.py"
_ENGINE: Final = "torch::autograd::Engine::"
#: Workspaces of cuBLAS and cuBLASLt.
_WORKSPACE: Final = re.compile(r"^at::cuda::.*Workspace")
_BACKWARD: Final = frozenset({"backward", "grad", "_engine_run_backward"})
_MOVES: Final = frozenset({"_apply", "convert", "to", "cuda", "to_empty"})
_INITIALISES: Final = frozenset({"__init__", "reset_parameters"})
_FORWARD: Final = frozenset({"forward", "_call_impl", "_wrapped_call_impl"})
_OPTIMIZER_STEP: Final = "Optimizer.step#"
#: Functions that PyTorch calls for an operator in Python, under a dispatch mode or for a tensor's subclass; and the
#: files of the decorators around it.
_DISPATCH: Final = "__torch_dispatch__"
_DECORATORS: Final = ("/torch/_compile.py", "/torch/_dynamo/")


class _Place(NamedTuple):
    """The fields of `Origin`."""

    category: Category
    file: str | None
    line: int | None
    function: str | None


#: The place of blocks that were allocated before stacks were recorded, which is not known.
_BEFORE: Final = _Place("before_history", None, None, None)
_UNKNOWN: Final = _Place("unknown", None, None, None)
#: The threads of a backward pass have no Python frames of their own, and no others allocate without.
_IN_BACKWARD: Final = _Place("gradients", None, None, None)


class _Piece(NamedTuple):
    """A live block: its bytes, and what holds its stack: the event that allocated it, or the block of the snapshot.

    `source` is None if a block from before the history is gone by the snapshot: then nothing says who allocated it.
    """

    size: int
    source: MemoryEvent | Block | None


def summarize_snapshots(paths: Sequence[Path]) -> MemorySnapshots:
    """The figures of snapshot files; with several files also the growth from the first to the last.

    Raises:
        SnapshotError: a file cannot be read, or is no snapshot.
    """
    read = [read_snapshot(path) for path in paths]
    devices = [_devices(snapshot) for snapshot in read]
    snapshots = tuple(_document(loaded, on_devices) for loaded, on_devices in zip(read, devices, strict=True))
    growth = None if len(read) == 1 else _growth(devices[0], devices[-1])
    return MemorySnapshots(snapshots=snapshots, growth=growth)


def _document(snapshot: Snapshot, devices: "Sequence[_Device]") -> MemorySnapshot:
    settings = snapshot.content.allocator_settings.get("PYTORCH_CUDA_ALLOC_CONF")
    return MemorySnapshot(
        path=snapshot.path,
        sha256=snapshot.sha256,
        settings=settings if isinstance(settings, str) else None,
        devices=tuple(device.document() for device in devices),
    )


def _devices(snapshot: Snapshot) -> "list[_Device]":
    content = snapshot.content
    segments: dict[int, list[Segment]] = defaultdict(list)
    for segment in content.segments:
        segments[segment.device].append(segment)
    used = {*segments, *(number for number, trace in enumerate(content.device_traces) if trace)}
    return [
        _Device(
            snapshot.path,
            number,
            segments[number],
            content.device_traces[number] if 0 <= number < len(content.device_traces) else [],
            _optimizer_steps(content.external_annotations, number),
        )
        for number in sorted(used)
    ]


def _optimizer_steps(annotations: Iterable[Annotation], device: int) -> list[tuple[int, int]]:
    """Begin and end of each optimizer's step, where labels were recorded (`global_record_annotations`)."""
    begins: dict[str, int] = {}
    spans = []
    for annotation in annotations:
        if annotation.device != device or not annotation.name.startswith(_OPTIMIZER_STEP):
            continue
        if annotation.stage == "START":
            begins[annotation.name] = annotation.time_us
        elif annotation.name in begins:
            spans.append((begins.pop(annotation.name), annotation.time_us))
    return spans


@dataclass
class _Device:
    """One GPU of a snapshot."""

    path: str
    number: int
    segments: Sequence[Segment]
    events: Sequence[MemoryEvent]
    optimizer_steps: Sequence[tuple[int, int]]

    def document(self) -> SnapshotDevice:
        """The figures of this GPU."""
        reserved = sum(segment.total_size for segment in self.segments)
        free = [
            (block.size, any(other.state != _INACTIVE for other in segment.blocks))
            for segment in self.segments
            for block in segment.blocks
            if block.state == _INACTIVE
        ]
        free_bytes = sum(size for size, _ in free)
        largest = max((size for size, _ in free), default=0)
        peak = self._peak
        at_peak = [] if peak is None else self._lines(self._live_at(peak[1]))
        by_category: Counter[str] = Counter()
        for line in at_peak:
            by_category[line.category] += line.bytes
        return SnapshotDevice(
            device=self.number,
            allocated_bytes=sum(piece.size for piece in self._at_end.values()),
            reserved_bytes=reserved,
            free_bytes=free_bytes,
            stuck_bytes=sum(size for size, is_stuck in free if is_stuck),
            largest_free_bytes=largest,
            fragmentation=1 - largest / free_bytes if free_bytes else None,
            segments=len(self.segments),
            peak_bytes=None if peak is None else peak[0],
            peak_event=None if peak is None else peak[1],
            events=len(self.events),
            agrees=self._agrees if self.events else None,
            at_peak=tuple(at_peak[:MOST]),
            live=tuple(self.live[:MOST]),
            peak_by_category=dict(by_category.most_common()),
            out_of_memory=tuple(self._out_of_memory()),
            curve=self._thinned(),
        )

    @cached_property
    def live(self) -> list[LiveLine]:
        """The blocks that are live at the snapshot, by line."""
        return self._lines(self._at_end.values())

    @cached_property
    def _at_end(self) -> dict[int, _Piece]:
        """The blocks that are live at the snapshot, by address, with the bytes that were asked for."""
        live = {}
        for segment in self.segments:
            address = segment.address
            for block in segment.blocks:
                if block.state == _ALLOCATED:
                    place = address if block.address is None else block.address
                    live[place] = _Piece(_requested(block), block)
                address += block.size
        return live

    @cached_property
    def _end(self) -> str | None:
        """The action that ends a block in this history."""
        actions = {event.action for event in self.events}
        return next((action for action in _ENDS if action in actions), None)

    @cached_property
    def _before(self) -> list[tuple[_Piece, int | None]]:
        """Blocks from before the history, each with the number of the event that ends it; None if it stays."""
        found: list[tuple[_Piece, int | None]] = []
        live: dict[int, _Piece] = {}
        for number, event in enumerate(self.events):
            if event.addr is None:
                continue
            if event.action == "alloc":
                live[event.addr] = _Piece(event.size, event)
            elif event.action == self._end and live.pop(event.addr, None) is None:
                found.append((_Piece(event.size, None), number))
        found += [(piece, None) for address, piece in self._at_end.items() if address not in live]
        return found

    @cached_property
    def _agrees(self) -> bool:
        """Whether the history ends at the blocks that are live at the snapshot."""
        live: set[int | None] = set()
        for event in self.events:
            if event.action == "alloc":
                live.add(event.addr)
            elif event.action == self._end:
                live.discard(event.addr)
        return live <= {*self._at_end}

    @cached_property
    def _curve(self) -> list[tuple[int, int]]:
        """Allocated and reserved bytes after each event."""
        reserved_now = sum(segment.total_size for segment in self.segments)
        change = sum(_reserves(event) for event in self.events)
        allocated = sum(piece.size for piece, _ in self._before)
        reserved = reserved_now - change
        points = []
        for event in self.events:
            if event.action == "alloc":
                allocated += event.size
            elif event.action == self._end:
                allocated -= event.size
            reserved += _reserves(event)
            points.append((allocated, reserved))
        return points

    @cached_property
    def _peak(self) -> tuple[int, int] | None:
        """The most allocated bytes, and the number of the event that reaches them."""
        if not self._curve:
            return None
        number = max(range(len(self._curve)), key=lambda place: self._curve[place][0])
        return self._curve[number][0], number

    def _live_at(self, number: int) -> list[_Piece]:
        """The blocks that are live after an event."""
        live: dict[int | None, _Piece] = {}
        for event in self.events[: number + 1]:
            if event.action == "alloc":
                live[event.addr] = _Piece(event.size, event)
            elif event.action == self._end:
                live.pop(event.addr, None)
        earlier = [piece for piece, end in self._before if end is None or end > number]
        return [*earlier, *live.values()]

    def _thinned(self) -> tuple[tuple[int, int, int], ...]:
        """The curve with at most `_POINTS` points, the highest of each stretch."""
        points = [(number, *point) for number, point in enumerate(self._curve)]
        size = -(-len(points) // _POINTS) or 1
        return tuple(
            max(points[begin : begin + size], key=lambda point: point[1]) for begin in range(0, len(points), size)
        )

    def _out_of_memory(self) -> Iterable[OutOfMemory]:
        for number, event in enumerate(self.events):
            if event.action == "oom":
                place = self._place(event)
                allocated, reserved = self._curve[number]
                yield OutOfMemory(
                    bytes=event.size,
                    device_free_bytes=event.device_free,
                    allocated_bytes=allocated,
                    reserved_bytes=reserved,
                    file=place.file,
                    line=place.line,
                    function=place.function,
                )

    def _lines(self, pieces: Iterable[_Piece]) -> list[LiveLine]:
        """Blocks by the line that allocated them, most bytes first."""
        sums: dict[_Place, list[int]] = defaultdict(lambda: [0, 0])
        for piece in pieces:
            total = sums[self._place(piece.source)]
            total[0] += 1
            total[1] += piece.size
        lines = [LiveLine(**place._asdict(), blocks=blocks, bytes=size) for place, (blocks, size) in sums.items()]
        return sorted(lines, key=lambda line: -line.bytes)

    @cached_property
    def _has_stacks(self) -> bool:
        """Whether the history was recorded with stacks."""
        return any(event.frames for event in self.events if event.action == "alloc")

    @cached_property
    def _places(self) -> dict[tuple[int, bool], _Place]:
        """By stack, since many blocks share one, and by whether an optimizer's step runs."""
        return {}

    def _place(self, source: MemoryEvent | Block | None) -> _Place:
        if source is None:
            return _BEFORE
        stack = source.frames
        if isinstance(source, Block) and not stack:
            stack = _first_of_history(source.history)
        if isinstance(source, Block) and not stack:
            return _BEFORE
        if isinstance(source, MemoryEvent) and not stack:
            return _IN_BACKWARD if self._has_stacks else _UNKNOWN
        time_us = source.time_us if isinstance(source, MemoryEvent) else None
        in_step = time_us is not None and any(begin <= time_us <= end for begin, end in self.optimizer_steps)
        known = self._places.get((id(stack), in_step))
        if known is None:
            try:
                known = _place_of(frames_of(stack), in_optimizer=in_step)
            except SnapshotError as error:
                raise SnapshotError(error.what, where=self.path, expected=error.expected) from None
            if stack:
                self._places[id(stack), in_step] = known
        return known


def _requested(block: Block) -> int:
    return block.size if block.requested_size is None else block.requested_size


def _first_of_history(history: Any) -> Any:
    """The stack of a block in files of PyTorch before 2.1."""
    if isinstance(history, list) and history and isinstance(history[0], dict):
        return history[0].get("frames")
    return None


def _reserves(event: MemoryEvent) -> int:
    """The change of the reserved bytes by an event."""
    if event.action in _GROWS:
        return event.size
    if event.action in _SHRINKS:
        return -event.size
    return 0


def _place_of(frames: Sequence[SnapshotFrame], *, in_optimizer: bool) -> _Place:
    """The line that a stack belongs to, and the use of its memory."""
    python = [frame for frame in frames if frame.line > 0 and not _NATIVE.search(frame.file)]
    if _is_called_by_engine(python):
        return _IN_BACKWARD
    programs = [frame for frame in python if not _INSTALLED.search(frame.file)]
    line = next(iter(programs or python), None)
    category = _category(frames, python, in_optimizer=in_optimizer)
    return _Place(category, None, None, None) if line is None else _Place(category, *line)


def _is_called_by_engine(python: Sequence[SnapshotFrame]) -> bool:
    """Whether the outermost frame of Python is that of an operator: no Python called it, so a backward pass did."""
    outermost = next((frame for frame in reversed(python) if not any(map(frame.file.__contains__, _DECORATORS))), None)
    return outermost is not None and outermost.function == _DISPATCH


def _category(frames: Sequence[SnapshotFrame], python: Sequence[SnapshotFrame], *, in_optimizer: bool) -> Category:
    if any(_WORKSPACE.search(frame.function) for frame in frames):
        return "workspaces"
    if in_optimizer or any(_OPTIMIZER_FILE in frame.file for frame in python):
        return "optimizer_state"
    if any(_ENGINE in frame.function for frame in frames) or any(
        _AUTOGRAD_FILE in frame.file and frame.function in _BACKWARD for frame in python
    ):
        return "gradients"
    if any(_LOADER_FILE in frame.file for frame in python):
        return "inputs"
    if any(frame.function in _FORWARD for frame in python):
        return "activations"
    if any(map(_makes_parameters, python)):
        return "parameters"
    return "unknown"


def _makes_parameters(frame: SnapshotFrame) -> bool:
    """Whether a frame moves a module to the GPU, or initialises its weights."""
    if frame.function in _MOVES:
        return frame.file.endswith(_MODULE_FILE)
    return frame.function in _INITIALISES and _NN_FILE in frame.file


def _growth(before: Sequence[_Device], now: Sequence[_Device]) -> tuple[Growth, ...]:
    """Lines with other live bytes in the last snapshot than in the first, most growth first."""
    sides: dict[tuple[int, _Place], list[LiveLine | None]] = defaultdict(lambda: [None, None])
    for side, devices in enumerate((before, now)):
        for device in devices:
            for line in device.live:
                place = _Place(line.category, line.file, line.line, line.function)
                sides[device.number, place][side] = line
    rows = []
    for (number, place), (old, new) in sides.items():
        sizes = [0 if line is None else line.bytes for line in (old, new)]
        blocks = [0 if line is None else line.blocks for line in (old, new)]
        if sizes[0] != sizes[1]:
            rows.append(
                Growth(
                    **place._asdict(),
                    device=number,
                    before_bytes=sizes[0],
                    now_bytes=sizes[1],
                    grown_bytes=sizes[1] - sizes[0],
                    before_blocks=blocks[0],
                    now_blocks=blocks[1],
                )
            )
    return tuple(sorted(rows, key=lambda row: -row.grown_bytes))
