"""What a diff cannot show, and what to be careful about when reading it.

`steptrace capture` writes beside its traces the times of unprofiled steps just before, and the machine's load: steps
under the profiler are few and slowed down by it, and by other work on the machine while they were recorded. Two
captures of one training can differ by several times; the unprofiled steps say what the training took.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from steptrace.diff.side import Side
from steptrace.documents.run import capture_of
from steptrace.trace.columns import Ints

#: Below this share of kernels by time with a namesake on the other side, the programs are taken for different ones.
LEAST_ALIKE: Final = 0.25
#: From here on the ratio of profiled steps is said not to be the training's, and the load to be another.
_OTHER_RATIO: Final = 1.1
_OTHER_LOAD: Final = 0.25


def not_measured(a: Side, b: Side) -> dict[str, tuple[str, ...]]:
    """Topic -> the sides, `a` and `b`, whose traces could not show it; nothing for a topic that both show."""
    shown = {
        "kernels": (a.gpu, b.gpu),
        "syncs": (a.runtime, b.runtime),
        "lines": (a.gpu and a.stacks, b.gpu and b.stacks),
    }
    missing = {
        topic: tuple(side for side, known in zip("ab", both, strict=True) if not known) for topic, both in shown.items()
    }
    return {topic: found for topic, found in missing.items() if found}


def notes(a: Side, b: Side) -> list[str]:
    """Sentences on what makes the two sides hard to compare."""
    found = []
    unit = "trace" if a.whole_traces else "step"
    if a.devices and b.devices and set(a.devices) != set(b.devices):
        found.append(
            f"A ran on {' and '.join(a.devices)}, B on {' and '.join(b.devices)}: what differs is of the machine and "
            "of the program together."
        )
    if len(a.paths) != len(b.paths):
        found.append(f"A is {_traces(a)}, B {_traces(b)}: with another number of ranks a {unit} is other work.")
    if a.gpu and b.gpu and (alike := _alike(a, b)) < LEAST_ALIKE:
        found.append(
            f"Kernels of the same name make up {100 * alike:.0f} % of the GPU's time: these may be different programs."
        )
    if a.overlapping or b.overlapping:
        found.append(
            f"GPU work of a step runs on into the next step's time in {_sides(a.overlapping, b.overlapping)}. A step "
            "is counted up to where the next begins, so that no time counts twice."
        )
    if min(a.units, b.units) < 2:
        found.append(f"One {unit} on a side: there is no spread to judge a difference by.")
    return found


def _traces(side: Side) -> str:
    return "one trace" if len(side.paths) == 1 else f"{len(side.paths)} traces"


def _sides(a: bool, b: bool) -> str:  # noqa: FBT001
    return "both" if a and b else "A" if a else "B"


def _alike(a: Side, b: Side) -> float:
    """The smaller share of a side's GPU time that is of kernels, copies and sets that the other side has by name."""
    times = [side.tables["kernels"].groupby("name")["device_ns"].sum() for side in (a, b)]
    shares = [
        float(own[own.index.isin(other.index)].sum() / own.sum()) if own.sum() else 1.0
        for own, other in (times, times[::-1])
    ]
    return min(shares)


@dataclass(frozen=True)
class Captured:
    """The captures of a side: times of the unprofiled steps before them, and the load average per CPU; None if unknown.

    The load is that of the rank's machine that had most.
    """

    step_ns: Ints | None
    load: float | None


def captured(side: Side) -> Captured | None:
    """What the captures of a side say; None unless all its traces are of captures."""
    records = [capture for path in side.paths if (capture := capture_of(path)) is not None]
    if len(records) < len(side.paths):
        return None
    before = [capture.unprofiled for capture in records if capture.unprofiled is not None]
    if len(before) < len(records):
        return Captured(None, None)
    times = np.concatenate([np.asarray(one.step_ns, dtype=np.int64) for one in before])
    return Captured(times, max(one.load_average / one.cpus for one in before))


def unprofiled_ns(side: Side) -> Ints | None:
    """The times of the unprofiled steps before the captures of a side, if it is of captures and they are known."""
    found = captured(side)
    return None if found is None else found.step_ns


def capture_notes(a: Side, b: Side) -> list[str]:
    """Which times to compare, if both sides are of captures."""
    ours, theirs = captured(a), captured(b)
    if ours is None or theirs is None:
        return []
    found = []
    if ours.step_ns is None or theirs.step_ns is None:
        which = "both captures" if ours.step_ns is theirs.step_ns else f"capture {'A' if ours.step_ns is None else 'B'}"
        found.append(
            f"No unprofiled steps were timed before {which}. Times under the profiler change with the machine's load: "
            "compare counts, not times, or capture again after a few more steps."
        )
    else:
        medians = [float(np.median(side.step_ns)) for side in (ours, theirs) if side.step_ns is not None]
        profiled = [float(np.median(side.totals["step_ns"])) for side in (a, b)]
        ratio = medians[1] / max(medians[0], 1)
        under = profiled[1] / max(profiled[0], 1)
        text = f"Unprofiled steps just before the captures: {medians[0] / 1e6:.4g} ms -> {medians[1] / 1e6:.4g} ms"
        text += f" ({ratio:.2f}x)."
        if max(under / ratio, ratio / under) >= _OTHER_RATIO:
            text += f" Go by these: that the steps in the traces differ by {under:.2f}x is not the training's doing."
        found.append(text)
    if ours.load is not None and theirs.load is not None and abs(ours.load - theirs.load) >= _OTHER_LOAD:
        found.append(
            f"The machine was not equally busy: load average {ours.load:.2f} per CPU in A, {theirs.load:.2f} in B. "
            "All times, those of unprofiled steps too, may differ for that reason."
        )
    return found
