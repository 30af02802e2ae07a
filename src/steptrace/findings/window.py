"""The view of one trace that rules get: its figures per step, and the most that a match can cost."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from steptrace.documents.idle import HostActivity
from steptrace.documents.subjects.callbacks import SUBJECT as CALLBACKS
from steptrace.documents.subjects.placement import SUBJECT as PLACEMENT
from steptrace.documents.summary import TraceSummary
from steptrace.limits import HOST_BOUND, SLOW_PROFILE

_BUSY: Final = ("compute", "exposed_memory", "exposed_comm")
#: Classes of the critical path on the GPU.
_GPU_CLASSES: Final = ("queue", "compute", "comm", "memory")


@dataclass(frozen=True)
class Window:
    """The input of a rule on one trace: its entry of summary.json, with all times per step.

    `step_ns` is the mean profiled step, or the length of a trace without steps, which counts as one step: its findings
    have a share, but no cost per step. Figures that were not measured are None, and trigger no rule.

    `parts` are the exclusive parts of the GPU's time (`compute`, `exposed_memory`, `exposed_comm`, `idle_sync`,
    `idle_loader`, `idle_host`, `idle_dependency`, `idle_between_kernels`, `idle_unknown`) in ns of a step, empty
    without a GPU.
    """

    entry: TraceSummary
    steps: int
    step_ns: float
    parts: Mapping[str, float]

    @property
    def idle_ns(self) -> float | None:
        """Idle time of the GPU in a step, None without a GPU."""
        return sum(ns for name, ns in self.parts.items() if name not in _BUSY) if self.parts else None

    @property
    def host_while_idle(self) -> list[tuple[HostActivity, float]]:
        """What the host did while the GPU was idle since nothing was launched, in ns of a step, the longest first.

        It is empty if the trace does not say.
        """
        gaps = self.entry.host_gaps
        if gaps is None or gaps.call_ns is None or gaps.op_ns is None:
            return []
        outside: HostActivity = "python" if self.entry.program.stacks else "outside_operators"
        parts: list[tuple[HostActivity, float]] = [
            (outside, self.per_step(gaps.gap_ns - gaps.call_ns - gaps.op_ns)),
            ("operators", self.per_step(gaps.op_ns)),
            ("runtime_calls", self.per_step(gaps.call_ns)),
        ]
        return sorted(parts, key=lambda part: -part[1])

    def per_step(self, total: float) -> float:
        """A figure over the whole trace, per step."""
        return total / max(self.steps, 1)

    def share(self, ns: float) -> float:
        """A step's time as a share of the step; 0 for a trace without length."""
        return ns / self.step_ns if self.step_ns else 0.0

    @property
    def unprofiled_ns(self) -> float | None:
        """The length of an unprofiled step, on average where steps differ; None if unknown."""
        return self.entry.unprofiled_mean_ns if self.entry.step_kinds else self.entry.unprofiled_step_ns

    @property
    def slower(self) -> float | None:
        """The profiled over the unprofiled step time, of steps of one kind where they differ; None if unknown."""
        if self.entry.profiled_over_unprofiled is not None:
            return self.entry.profiled_over_unprofiled
        unprofiled_ns = self.entry.unprofiled_step_ns
        return self.step_ns / unprofiled_ns if unprofiled_ns and self.steps else None

    def without_profiler(self, idle_ns: float) -> tuple[float, float]:
        """Idle time of the GPU in an unprofiled step, and that step's length; as profiled without such a step.

        It is at most what that step leaves beside the GPU's work: the rest of the profiled idle time is the profiler's,
        which slows the host.
        """
        step_ns = self.unprofiled_ns if self.entry.unprofiled_alike_ns is None else self.entry.unprofiled_alike_ns
        if self.idle_ns is None or not self.steps or not step_ns or not step_ns < self.step_ns < SLOW_PROFILE * step_ns:
            return idle_ns, self.step_ns
        return min(idle_ns, max(step_ns - (self.step_ns - self.idle_ns), 0.0)), float(step_ns)

    def bounded(self, cost_ns: float | None, share: float | None) -> tuple[float | None, float | None]:
        """A cost, at most an unprofiled step (a profiled one may be longer), and its share of the step, at most 1."""
        most_ns = self.unprofiled_ns if self.steps else None
        if cost_ns is None or most_ns is None or cost_ns <= most_ns:
            return cost_ns, share
        return most_ns, 1.0

    @property
    def host_may_be_slowed(self) -> bool:
        """Whether Python stacks were recorded, which slows the host, and no unprofiled step says by how much."""
        return self.entry.program.stacks and self.entry.unprofiled_step_ns is None

    @property
    def waits_for_host(self) -> float:
        """The share of a step, an unprofiled one if known, in which the GPU is idle because nothing was launched."""
        idle_ns, step_ns = self.without_profiler(self.parts.get("idle_host", 0.0))
        return idle_ns / step_ns if step_ns else 0.0

    @property
    def callback_idle_ns(self) -> float:
        """Idle time of the GPU in a step while callbacks around it run."""
        return self.per_step(sum(row.idle_ns or 0 for row in CALLBACKS.rows_of(self.entry)))

    @property
    def operator_wait_ns(self) -> float:
        """The longest time of a step that the GPU can wait for operators that compute on the host."""
        long_ns = self.per_step(sum(row.long_ns for row in PLACEMENT.rows_of(self.entry) if row.placed == "host"))
        return min(long_ns, self.parts.get("idle_host", 0.0))

    @property
    def host_bound(self) -> bool:
        """Whether the GPU waits for the host for half of the step or more."""
        return self.waits_for_host >= HOST_BOUND

    @property
    def gpu_on_path_ns(self) -> float | None:
        """GPU work on the critical path of a step that the host bounds: shorter GPU work saves no more.

        None if the host does not bound the step. The critical path does not know when a launch queue is full, so it can
        lie on the host even if the GPU bounds the step.
        """
        path = self.entry.critical_path
        if path is None or not self.host_bound:
            return None
        on_gpu = [row.path_ns for row in path.classes if row.class_ in _GPU_CLASSES]
        return None if None in on_gpu else float(sum(ns for ns in on_gpu if ns is not None))


def window_of(entry: TraceSummary) -> Window:
    """The window of one trace's entry in summary.json."""
    divided = entry.overview
    if divided is None:
        return Window(entry, 0, float(entry.window_ns), {})
    parts = divided.of_step if divided.kind == "gpu" else {}
    return Window(entry, divided.steps, divided.window_ns / (divided.steps or 1), parts)
