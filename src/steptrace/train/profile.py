"""The profiled window: a few steps under torch.profiler, written as one Chrome trace per rank.

These steps only explain. Their times are kept (phase `profiled`) for one purpose: to say how much slower a step is
while it is being watched.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from steptrace.trace.written import export
from steptrace.train.loop import StepTiming, Training, step_clock, synchronize, timings, train_step


@dataclass(frozen=True)
class ProfileSettings:
    """The config's `profile` group: steps not recorded, recorded and discarded, kept; and what is recorded."""

    wait: int
    warmup: int
    active: int
    record_shapes: bool
    profile_memory: bool
    with_stack: bool

    @property
    def steps(self) -> int:
        """Steps of the whole window."""
        return self.wait + self.warmup + self.active


def trace_name(rank: int) -> str:
    """File name of a rank's trace: `trace.json.gz` for rank 0, `trace.rank1.json.gz` for rank 1, and so on."""
    return "trace.json.gz" if rank == 0 else f"trace.rank{rank}.json.gz"


def profile_steps(training: Training, settings: ProfileSettings, trace: Path) -> list[StepTiming]:
    """Run the window, write its trace to `trace` (.json.gz), and return the timing of each active step."""
    losses: list[torch.Tensor] = []
    waits_ns: list[int] = []
    clock, marks = step_clock(training.device), []
    synchronize(training.device)
    with _profiler(training.device, settings, trace) as profiler:
        for index in range(settings.steps):
            active = index >= settings.wait + settings.warmup
            if active:
                marks.append(clock.now())
            loss, wait_ns = train_step(training)
            if active:
                marks.append(clock.now())
                losses.append(loss)
                waits_ns.append(wait_ns)
            profiler.step()
    synchronize(training.device)
    # Every second interval is a step; those between belong to the profiler, which writes the trace in the last one.
    return timings(clock.intervals_ns(marks)[::2], waits_ns, losses)


@contextmanager
def _profiler(device: torch.device, settings: ProfileSettings, trace: Path) -> Iterator[profile]:
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with warnings.catch_warnings():
        # PyTorch 2.11 says so of every profile, also of one with a single cycle, which loses nothing.
        warnings.filterwarnings("ignore", "Warning: Profiler clears events", UserWarning)
        with profile(
            activities=activities,
            schedule=schedule(wait=settings.wait, warmup=settings.warmup, active=settings.active, repeat=1),
            on_trace_ready=lambda profiler: export(profiler, trace),
            record_shapes=settings.record_shapes,
            profile_memory=settings.profile_memory,
            with_stack=settings.with_stack,
        ) as profiler:
            yield profiler
