"""Inside the program: times its steps, then profiles some, then watches one for its source lines.

Nothing waits for the device within a phase; between phases the host does. On a GPU steps are timed by CUDA events. Then
some steps come under the profiler (`steptrace.recording`), one is watched operator by operator, and on a GPU
two are checked for PyTorch's own warnings of syncs.
"""

import json
import math
import os
import sys
import time
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from steptrace.exchange import write_whole
from steptrace.launch.probe import Phases, Probe
from steptrace.launch.steps import Step
from steptrace.place import place
from steptrace.recording import WITH_TRACE, Recording, Request, Settings
from steptrace.train.clock import Clock
from steptrace.train.step_recorders import COMPILED, OpLineRecorder, SyncWatcher, summary

#: Timed steps that there are at least, however long they take.
_LEAST_TIMED = 5
#: Steps watched for PyTorch's own warnings.
_WARNED_STEPS = 2


#: A step whose time is taken: its phase, the clock, the moments between which it ran, and what it was made of; losses
#: stay on their device until the record is made.
_Row = tuple[str, Clock, Any, Any, Step]


def _timed_ns(rows: Sequence[_Row]) -> list[int]:
    """The times of the timed steps, which are over."""
    return [clock.between_ns(start, end) for phase, clock, start, end, _ in rows if phase == "timed"]


def _to_json(rows: Sequence[_Row]) -> Iterator[dict[str, Any]]:
    _clock().synchronize()
    for phase, clock, start, end, step in rows:
        losses = [float(loss) for loss in step.losses]
        plain = {key: getattr(step, key) for key in Step.__slots__ if key != "losses"}
        step_ns = clock.between_ns(start, end)
        yield {"phase": phase, "step_ns": step_ns, "loss": sum(losses) if losses else None, **plain}


def measure(probe: Probe) -> Phases:
    """Warm-up, timed steps, profiled steps, watched steps."""
    rows: list[_Row] = []
    process = os.getpid()
    trace: Recording | None = None
    try:
        while not (yield from _timed(probe, rows)):
            rows.clear()
        probe.finder.settle()
        probe.record["memory"] = _memory(probe)
        if probe.settings.profile:
            request = Request("launch", probe.settings.out, Settings(steps=probe.settings.profile), asked_by="launch")
            trace = Recording(request, lambda: _timed_ns(rows))
            yield from _profiled(probe, rows, trace)
            if trace.state in WITH_TRACE:
                yield from _watched(probe)
    finally:
        if os.getpid() == process:  # not in a forked child, such as a loader's worker: profiler and GPU are not its own
            if trace is not None:
                trace.close()
                probe.record["trace"] = {"state": trace.state, "message": trace.message, "file": trace.trace.name}
            probe.record["rows"] = list(_to_json(rows))
            probe.record["gpu"] = _gpu()


def _timed(probe: Probe, rows: list[_Row]) -> Generator[None, Step, bool]:
    """Warm-up and timed steps; False where another optimizer has come up meanwhile that ends the steps from now on.

    The first step has no beginning that is known, and none is timed across the moment the program takes its GPU.
    """
    clock, start = _clock(), None
    left = probe.settings.warmup
    ends_at = _ends_at(probe)
    while left:
        step = yield
        left = probe.settings.warmup - 1 if step.new_leader else left - 1
        if time.monotonic() > ends_at:
            left = 0
        if not clock.on_gpu and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            clock, start = _clock(), None
        end = clock.now()
        if start is not None:
            rows.append(("warmup", clock, start, end, step))
        start = end
    clock.synchronize()
    start, ends_at = clock.now(), _ends_at(probe)
    for number in range(probe.settings.steps):
        if number >= _LEAST_TIMED and time.monotonic() > ends_at:
            limit = f"scale.at_most_s is {probe.settings.at_most_s:g} s"
            _warn(probe, f"{number} of {probe.settings.steps} planned steps were timed: {limit}")
            break
        step = yield
        if step.new_leader:
            return False
        end = clock.now()
        rows.append(("timed", clock, start, end, step))
        start = end
    clock.synchronize()
    return True


def _warn(probe: Probe, text: str) -> None:
    probe.record.setdefault("warnings", []).append(text)


def _ends_at(probe: Probe) -> float:
    """When a phase that begins now has to end, by the monotonic clock; several ranks take the same steps, so never."""
    at_most_s = probe.settings.at_most_s
    return math.inf if at_most_s is None or (place().world_size or 1) > 1 else time.monotonic() + at_most_s


def _clock() -> Clock:
    return Clock(on_gpu=bool(torch.cuda.is_initialized()))  # type: ignore[no-untyped-call]


def _profiled(probe: Probe, rows: list[_Row], trace: Recording) -> Phases:
    clock = _clock()
    over = probe.steps
    probe.hooks.labels = True
    trace.step(over)
    recorded = 0
    start = clock.now()
    while not trace.done:
        step = yield
        end = clock.now()
        over += 1
        trace.step(over)
        if trace.count > recorded:
            recorded = trace.count
            rows.append(("profiled", clock, start, end, step))
        start = clock.now()
    probe.hooks.labels = False


def _watched(probe: Probe) -> Phases:
    """One step under `OpLineRecorder`, and on a GPU some under `SyncWatcher`; rank 0 alone leaves what they found."""
    out, alone = Path(probe.settings.out), not place().rank
    if _has_compiled():  # a mode would make the program's own compiled code fail
        _warn(probe, COMPILED)
        return
    probe.hooks.labels = True
    recorder = OpLineRecorder()
    with recorder:
        yield
    if alone:
        _write_lines(out, [recorder])
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        watchers = [SyncWatcher() for _ in range(_WARNED_STEPS)]
        torch.cuda.synchronize()
        for watcher in watchers:
            with watcher.step():
                yield
        if alone:
            by_step = [step for watcher in watchers for step in watcher.by_step]
            write_whole(out / "warned_syncs.json", json.dumps(summary(by_step)).encode())
            _write_lines(out, [recorder, *watchers])


def _write_lines(out: Path, recorders: list[OpLineRecorder]) -> None:
    """The lines of the watched steps: one that logs or evaluates calls from others than the next one."""
    rows = [row for step, recorder in enumerate(recorders) for row in recorder.rows(step)]
    write_whole(out / "op_lines.json", json.dumps(rows).encode())
    texts = {file: text for recorder in recorders for file, text in recorder.sources().items()}
    write_whole(out / "sources.json", json.dumps(texts).encode())


def _has_compiled() -> bool:
    """Whether torch.compile has made anything in this process."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return dynamo is not None and bool(dynamo.counters["frames"])


def _memory(probe: Probe) -> dict[str, Any]:
    """The bytes of the tensors that the optimizers know of, by category; storages that are shared count once."""
    held: Counter[str] = Counter()
    seen: set[int] = set()

    def add(category: str, tensor: Any) -> None:
        tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor  # of a distributed one this rank's part
        if isinstance(tensor, Tensor) and tensor.layout is torch.strided:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in seen:
                seen.add(storage.data_ptr())
                held[category] += storage.nbytes()

    for optimizer in probe.finder.live_optimizers:
        parameters = [p for group in getattr(optimizer, "param_groups", ()) for p in group["params"]]
        for parameter in parameters:
            add("parameters", parameter)
            add("gradients", parameter.grad)
        for state in optimizer.state.values():
            for value in state.values() if isinstance(state, dict) else ():
                add("optimizer_state", value)
    peaks = {}
    if _clock().on_gpu:
        peaks = {
            "peak_allocated_bytes": torch.cuda.max_memory_allocated(),
            "peak_reserved_bytes": torch.cuda.max_memory_reserved(),
        }
    return {"held": dict(held), **peaks}


def _gpu() -> dict[str, Any] | None:
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return None
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {"name": properties.name, "memory_bytes": properties.total_memory, "count": torch.cuda.device_count()}
