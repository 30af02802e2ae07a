"""What a diff cannot show, and what to be careful about when reading it.

`steptrace capture` writes beside its traces the times of unprofiled steps just before, and the machine's load: steps
under the profiler are few and slowed down by it, and by other work on the machine while they were recorded. Two
captures of one training can differ by several times; the unprofiled steps say what the training took.
"""

from typing import Final

import numpy as np

from steptrace.diff.side import Side
from steptrace.documents.run import Unprofiled, capture_of
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
        sides = "both" if a.overlapping and b.overlapping else "A" if a.overlapping else "B"
        found.append(
            f"GPU work of a step runs on into the next step's time in {sides}. A step "
            "is counted up to where the next begins, so that no time counts twice."
        )
    if min(a.units, b.units) < 2:
        found.append(f"One {unit} on a side: there is no spread to judge a difference by.")
    return found


def _traces(side: Side) -> str:
    return "one trace" if len(side.paths) == 1 else f"{len(side.paths)} traces"


def _alike(a: Side, b: Side) -> float:
    """The smaller share of a side's GPU time that is of kernels, copies and sets that the other side has by name."""
    times = [side.tables["kernels"].groupby("name")["device_ns"].sum() for side in (a, b)]
    shares = [
        float(own[own.index.isin(other.index)].sum() / own.sum()) if own.sum() else 1.0
        for own, other in (times, times[::-1])
    ]
    return min(shares)


def _timed_before(side: Side) -> list[Unprofiled] | None:
    """The unprofiled steps before each capture of a side, none if any has none; None unless all traces are captures."""
    captures = [capture for path in side.paths if (capture := capture_of(path)) is not None]
    timed = [capture.unprofiled for capture in captures if capture.unprofiled is not None]
    if len(captures) < len(side.paths):
        return None
    return timed if len(timed) == len(captures) else []


def unprofiled_ns(side: Side) -> Ints | None:
    """The times of the unprofiled steps before the captures of a side, if it is of captures and they are known."""
    before = _timed_before(side)
    return np.concatenate([np.array(one.step_ns, dtype=np.int64) for one in before]) if before else None


def capture_notes(a: Side, b: Side) -> list[str]:
    """Which times to compare, if both sides are of captures."""
    ours, theirs = _timed_before(a), _timed_before(b)
    if ours is None or theirs is None:
        return []
    if not ours or not theirs:
        which = f"capture {'B' if ours else 'A'}" if ours or theirs else "both captures"
        text = f"No unprofiled steps were timed before {which}. Times under the profiler change with the machine's load"
        return [f"{text}: compare counts, not times, or capture again after a few more steps."]
    before, after = (float(np.median([ns for one in timed for ns in one.step_ns])) for timed in (ours, theirs))
    profiled = [float(np.median(side.totals["step_ns"])) for side in (a, b)]
    ratio, under = after / max(before, 1), profiled[1] / max(profiled[0], 1)
    text = f"Unprofiled steps just before the captures: {before / 1e6:.4g} ms -> {after / 1e6:.4g} ms ({ratio:.2f}x)."
    if max(under / ratio, ratio / under) >= _OTHER_RATIO:
        text += f" Go by these: that the steps in the traces differ by {under:.2f}x is not the training's doing."
    # Of several machines that of the rank that had most load.
    load_a, load_b = (max(one.load_average / one.cpus for one in timed) for timed in (ours, theirs))
    if abs(load_a - load_b) < _OTHER_LOAD:
        return [text]
    load = f"The machine was not equally busy: load average {load_a:.2f} per CPU in A, {load_b:.2f} in B. "
    return [text, load + "All times, those of unprofiled steps too, may differ for that reason."]
