"""Inside the program: measures its steps by the engine's phases, and counts what its optimizers hold."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from steptrace.engine.device import peaks, tensor_bytes
from steptrace.engine.measure import Measurement, MeasureSettings, Phases
from steptrace.engine.recording import Settings
from steptrace.launch.probe import Probe


def measure(probe: Probe) -> Phases:
    """Warm-up, timed steps, profiled steps, watched steps."""
    settings = probe.settings

    def between(phase: str) -> None:
        if phase == "timed":
            probe.finder.settle()
            probe.record |= {"memory": {"held": _held(probe.finder.live_optimizers), **peaks()}, **measurement.record}
            probe.save("partial")

    def progress(phase: str, done: int, total: int) -> None:
        if probe.progress(phase, done, total) and phase == "timed" and done:
            probe.record |= measurement.so_far()
            probe.save("partial")  # steps survive any end of the program, even one by SIGKILL

    window = Settings(steps=settings.profile) if settings.profile else None
    measured = MeasureSettings(Path(settings.out), settings.warmup, settings.steps, window, settings.at_most_s)
    measurement = Measurement(measured, label=probe.label, between=between, progress=progress)
    try:
        yield from measurement.phases()
    finally:
        probe.record |= measurement.record


def _held(optimizers: Iterable[Any]) -> dict[str, int]:
    """The bytes of the optimizers' tensors, by category."""
    tensors: dict[str, list[Any]] = {"parameters": [], "gradients": [], "optimizer_state": []}
    for optimizer in optimizers:
        parameters = [p for group in getattr(optimizer, "param_groups", ()) for p in group["params"]]
        tensors["parameters"] += parameters
        tensors["gradients"] += [parameter.grad for parameter in parameters]
        for state in optimizer.state.values():
            tensors["optimizer_state"] += state.values() if isinstance(state, dict) else ()
    return tensor_bytes({category: list(_local(values)) for category, values in tensors.items()})


def _local(values: Iterable[Any]) -> Iterator[Tensor]:
    """The tensors among these values; for a distributed one, this rank's part."""
    for value in values:
        part = value.to_local() if hasattr(value, "to_local") else value
        if isinstance(part, Tensor):
            yield part
