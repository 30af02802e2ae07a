"""diff.json: what changed from side A to side B, per step. What a side could not show is null."""

from typing import Annotated, Literal

import msgspec

from steptrace.documents.base import Document, File, field

Status = Literal["added", "removed", "slower", "faster", "calls"]
_STATUS = field("`calls`: only the count changed.")


class Measure(Document, frozen=True):
    """One measure per step (or per trace) on both sides."""

    a: Annotated[float, field("Median on side A.")]
    b: Annotated[float, field("Median on side B.")]
    a_quartiles: Annotated[tuple[float, float], field("Lower and upper quartile on side A.")]
    b_quartiles: Annotated[tuple[float, float], field("The same on side B.")]
    delta: Annotated[float, field("b - a.")]
    ratio: Annotated[float | None, field("b / a; null where a is 0.")]
    changed: Annotated[bool, field("Whether the quartiles do not overlap.")]


class ChangedFigure(Measure, frozen=True):
    """A figure of a step on both sides."""

    status: Annotated[
        Literal["better", "worse"] | None, field("Null if it did not change, or neither direction is better.")
    ]


class DiffSide(Document, frozen=True):
    """One side."""

    paths: Annotated[tuple[str, ...], field("Its traces.")]
    ranks: Annotated[tuple[int | None, ...], field("Their ranks, as far as they say.")]
    units: Annotated[int, field("Steps of all its traces; traces, where one has no steps.")]
    devices: Annotated[tuple[str, ...], field("Names of its GPUs.")]


class SyncTotal(Document, frozen=True):
    """Syncs of one side over all steps."""

    count: Annotated[int, field("How many.")]
    blocked_ns: Annotated[int, field("How long they blocked the host.", "ns")]


class SyncTotals(Document, frozen=True):
    """Syncs of both sides over all steps."""

    a: SyncTotal | None
    b: SyncTotal | None


class LaunchedBy(Document, frozen=True):
    """An operator and line that launched a kernel."""

    operator: Annotated[str | None, field("Operator.")]
    file: Annotated[str | None, field("File of the line.")]
    function: Annotated[str | None, field("Function of the line.")]
    a_ns: Annotated[float, field("Mean time per step on side A.", "ns")]
    b_ns: Annotated[float, field("Mean time per step on side B.", "ns")]


class KernelChange(Document, frozen=True):
    """A kernel, memcpy or memset that changed."""

    class_: Annotated[str, field("`compute`, `comm` or `memory`.")] = msgspec.field(name="class")
    name: Annotated[str, field("Name on side B; on side A where B lacks it.")]
    short_name: Annotated[str, field("Name as a person would say it.")]
    other_names: Annotated[tuple[str, ...], field("Further names of that side that count as the same kernel.")]
    renamed_from: Annotated[tuple[str, ...] | None, field("Names on side A, where they are others.")]
    status: Annotated[Status, _STATUS]
    count: Annotated[Measure | None, field("Launches.")]
    device_ns: Annotated[Measure | None, field("Time on the GPU.", "ns")]
    launched_by: Annotated[tuple[LaunchedBy, ...], field("By the size of the difference, the largest first.")]


class OperatorChange(Document, frozen=True):
    """An operator that changed."""

    name: Annotated[str, field("Name on side B; on side A where B lacks it.")]
    other_names: Annotated[tuple[str, ...], field("Further names of that side that count as the same operator.")]
    renamed_from: Annotated[tuple[str, ...] | None, field("Names on side A, where they are others.")]
    status: Annotated[Status, _STATUS]
    count: Annotated[Measure | None, field("Calls.")]
    host_ns: Annotated[Measure | None, field("Time on the host.", "ns")]
    host_self_ns: Annotated[Measure | None, field("The same without operators that it calls.", "ns")]
    device_ns: Annotated[Measure | None, field("GPU time launched by it and no operator inside.", "ns")]


class SyncChange(Document, frozen=True):
    """Syncs of one site that changed."""

    kind: Annotated[str, field("Kind of sync.")]
    file: Annotated[str | None, field("File of the line.")]
    function: Annotated[str | None, field("Function of the line.")]
    op: Annotated[str | None, field("Operator.")]
    label: Annotated[str | None, field("Innermost label.")]
    phase: Annotated[str | None, field("Part of the step.")]
    status: Annotated[Status, _STATUS]
    count: Annotated[Measure | None, field("How many.")]
    blocked_ns: Annotated[Measure | None, field("How long they blocked the host.", "ns")]


class LineChange(Document, frozen=True):
    """GPU work of one function of the program that changed."""

    file: Annotated[str | None, field("File.")]
    function: Annotated[str | None, field("Function.")]
    status: Annotated[Status, _STATUS]
    count: Annotated[Measure | None, field("Launches.")]
    device_ns: Annotated[Measure | None, field("Time on the GPU.", "ns")]


Change = KernelChange | OperatorChange | SyncChange | LineChange


class Diff(File, frozen=True, kw_only=True):
    """The content of diff.json. Rows stand by the size of their change, the largest first."""

    unit: Annotated[Literal["step", "trace"], field("What measures are per.")]
    a: DiffSide
    b: DiffSide
    totals: Annotated[dict[str, Measure | None], field("Figures of a whole step.")]
    figures: Annotated[dict[str, ChangedFigure | None], field("Those of docs/metrics.md.")]
    sync_totals: SyncTotals
    not_measured: Annotated[dict[str, tuple[str, ...]], field("Topics without rows: the sides that could not show it.")]
    unprofiled_step_ns: Annotated[Measure | None, field("Steps just before two captures.", "ns")]
    notes: Annotated[tuple[str, ...], field("What to be careful about.")]
    kernels: tuple[KernelChange, ...]
    operators: tuple[OperatorChange, ...]
    syncs: tuple[SyncChange, ...]
    lines: tuple[LineChange, ...]

    def rows(self, topic: str) -> tuple[Change, ...]:
        """The rows of `kernels`, `operators`, `syncs` or `lines`."""
        found: tuple[Change, ...] = getattr(self, topic)
        return found

    @property
    def is_empty(self) -> bool:
        """Whether no row changed."""
        return not (self.kernels or self.operators or self.syncs or self.lines)
