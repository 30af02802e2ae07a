"""Inside the program: measures its steps by the engine's phases, and counts what it holds."""

from pathlib import Path

from steptrace.engine.measure import Measurement, MeasureSettings, Phases
from steptrace.engine.memory import MemoryLook, modules_of
from steptrace.engine.recording import Settings
from steptrace.launch.probe import Probe


def measure(probe: Probe) -> Phases:
    """Warm-up, timed steps, profiled steps, watched steps."""
    settings = probe.settings
    look: MemoryLook | None = None

    def between(phase: str) -> None:
        nonlocal look
        if phase == "timed":
            probe.finder.settle()
            optimizers = probe.finder.live_optimizers
            probe.hooks.look = look = MemoryLook(modules_of(optimizers), optimizers)
            look.note_held()
            probe.record |= {"memory": look.record, **measurement.record}
            probe.save("partial")

    def progress(phase: str, done: int, total: int) -> None:
        if phase != "timed" and done:
            probe.hooks.look = None  # the step after the timed ones is over
        if probe.progress(phase, done, total) and phase == "timed" and done:
            probe.record |= measurement.so_far()
            probe.save("partial")  # steps survive any end of the program, even one by SIGKILL

    window = Settings(steps=settings.profile) if settings.profile else None
    measured = MeasureSettings(Path(settings.out), settings.warmup, settings.steps, window, settings.at_most_s)
    measurement = Measurement(measured, label=probe.label, between=between, progress=progress)
    try:
        yield from measurement.phases()
        if look is not None:
            look.note_workspaces()
    finally:
        probe.record |= measurement.record
