"""Inside the program: measures its steps by the engine's phases, and counts what it holds."""

from pathlib import Path

from steptrace.engine.measure import Measurement, MeasureSettings, Phases
from steptrace.engine.memory import held_bytes, modules_of, workspace_bytes
from steptrace.engine.recording import Settings
from steptrace.launch.probe import Probe


def measure(probe: Probe) -> Phases:
    """Warm-up, timed steps, profiled steps, watched steps."""
    settings = probe.settings

    def between(phase: str) -> None:
        if phase == "timed":
            probe.finder.settle()
            optimizers = probe.finder.live_optimizers
            held = held_bytes(modules_of(optimizers), optimizers)
            probe.record |= {"memory": {"held": held}, **measurement.record}
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
        probe.record["memory"]["held"] |= workspace_bytes()
    finally:
        probe.record |= measurement.record
