"""A device's memory grows from step to step."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import median
from typing import Annotated, Final

from steptrace.documents.base import Document, field
from steptrace.documents.finding import Source
from steptrace.documents.memory import DeviceMemory
from steptrace.findings.rule import Match, Rule, Threshold, TraceFigures, Words, advise
from steptrace.findings.window import Window
from steptrace.format import count, place, share, size_bytes

#: Caches fill in the first steps: optimizer states, workspaces, the allocations of a compiler.
_STEPS: Final = Threshold(8, "ours: fewer steps cannot tell a leak from what is allocated once", unit="")
_GROWING: Final = Threshold(0.75, "ours: a leak grows in nearly all steps; a cache fills in some")
#: A leak in every tenth step, such as one at each log, does not grow in most steps. It never shrinks, and goes on.
_LONG: Final = Threshold(16, "ours: four quarters of four steps each", unit="")
_QUARTERS: Final = 4
_LEAST: Final = Threshold(1024, "ours: bookkeeping of a few bytes fills no device", unit="B")
#: The most origins that are named.
_MOST_NAMED: Final = 3


class LeftMemory(Document, frozen=True, kw_only=True):
    """Blocks of one origin that earlier steps allocated and that are still live."""

    file: Annotated[str | None, field("File of the line that allocated them; null without stacks.")]
    line: Annotated[int | None, field("The line.")]
    op: Annotated[str | None, field("Operator that allocated them.")]
    bytes: Annotated[int, field("Their bytes.")]


class Figures(TraceFigures, frozen=True, kw_only=True):
    """How a device's memory grows."""

    device_type: Annotated[str, field("`cpu` or `cuda`.")]
    device: Annotated[int | None, field("Number of the device; null for the host.")]
    growth_bytes: Annotated[
        float,
        field("Median growth from the end of a step to the end of the next; the mean where most steps do not grow."),
    ]
    growing_share: Annotated[float, field("Share of the steps that end with more than the step before.")]
    headroom_bytes: Annotated[int | None, field("What the device has left at the peak; null if not known.")]
    steps_left: Annotated[float | None, field("Steps until that is filled, at this pace.")]
    stays: Annotated[tuple[LeftMemory, ...], field("What earlier steps left, largest first.")]


def _find(window: Window) -> Iterator[Match[Figures]]:
    for memory in window.entry.memory or ():
        ends = memory.step_end_bytes or ()
        if len(ends) < _STEPS.value:
            continue
        changes = [later - earlier for earlier, later in pairwise(ends)]
        growing = sum(change > 0 for change in changes) / len(changes)
        growth = median(changes) if growing >= _GROWING.value else _steady_growth(ends)
        if growth < _LEAST.value:
            continue
        yield Match(
            severity="high" if memory.device_type != "cpu" else "warning",
            figures=_figures(window, memory, growing, growth),
            source=_source(memory),
        )


def _steady_growth(ends: Sequence[int]) -> float:
    """The mean growth of a step where memory never shrinks and grows in each quarter of the steps; otherwise 0."""
    if len(ends) < _LONG.value or any(later < earlier for earlier, later in pairwise(ends)):
        return 0.0
    quarters = [ends[round(quarter * (len(ends) - 1) / _QUARTERS)] for quarter in range(_QUARTERS + 1)]
    goes_on = all(later > earlier for earlier, later in pairwise(quarters))
    return (ends[-1] - ends[0]) / (len(ends) - 1) if goes_on else 0.0


def _figures(window: Window, memory: DeviceMemory, growing: float, growth: float) -> Figures:
    left = memory.headroom_bytes
    return Figures(
        steps=window.steps,
        step_ns=window.step_ns,
        device_module=window.entry.device_module,
        device_type=memory.device_type,
        device=memory.device,
        growth_bytes=growth,
        growing_share=growing,
        headroom_bytes=left,
        steps_left=None if left is None else max(left, 0) / growth,
        stays=tuple(
            LeftMemory(file=row.file, line=row.line, op=row.op, bytes=row.bytes) for row in memory.stays[:_MOST_NAMED]
        ),
    )


def _source(memory: DeviceMemory) -> Source | None:
    """The line that left most, None without stacks."""
    row = next((row for row in memory.stays if row.file is not None and row.line is not None), None)
    return None if row is None else Source(file=row.file, line=row.line)


def _words(figures: Figures) -> Words:
    where = "the host's memory" if figures.device is None else f"the memory of GPU {figures.device}"
    evidence = [f"more at the end of a step than of the one before: {share(figures.growing_share)} of the steps"]
    if figures.steps_left is not None and figures.headroom_bytes is not None:
        left = count(round(figures.steps_left))
        evidence.append(f"{size_bytes(figures.headroom_bytes)} are left, for {left} more steps at this pace")
    for row in figures.stays:
        op = row.op or "work outside operators"
        origin = op if row.file is None else f"{op} at {place(row.file, row.line)}"
        evidence.append(f"left by earlier steps: {size_bytes(row.bytes)} of {origin}")
    mean = "" if figures.growing_share >= _GROWING.value else " on average"
    return Words(f"{where} grows by {size_bytes(figures.growth_bytes)} a step{mean}", tuple(evidence))


RULE: Final = Rule(
    name="memory_grows",
    topic="memory",
    figures=Figures,
    told_apart_by=("device_type", "device"),
    words=_words,
    in_trace=_find,
    condition="of at least {steps} profiled steps, {growing} or more end with more live bytes than the step before, "
    "and the median growth is at least {least}; or of at least {long} steps none ends with less, each quarter grows, "
    "and the mean growth is at least {least}; needs `profile_memory`",
    thresholds={"steps": _STEPS, "growing": _GROWING, "long": _LONG, "least": _LEAST},
    advice=advise(
        "Look for tensors that outlive their step: a list of losses with their graphs (append `loss.detach()`), a "
        "cache without a limit, hidden states carried on without `detach()`.",
    ),
    counter_check="Record twice as many steps: a leak grows twice as much, a cache stops.",
)
