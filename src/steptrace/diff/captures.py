"""What `steptrace capture` wrote beside its traces: the times of unprofiled steps just before, and the machine's load.

Steps under the profiler are few and slowed down by it, and by other work on the machine while they were recorded: two
captures of one training can differ by several times. The unprofiled steps say what the training took.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from steptrace.diff.side import Side
from steptrace.recording import unprofiled_before
from steptrace.trace.columns import Ints

#: From here on the ratio of profiled steps is said not to be the training's, and the load to be another.
_OTHER_RATIO: Final = 1.1
_OTHER_LOAD: Final = 0.25


@dataclass(frozen=True)
class Captured:
    """The captures of a side: times of the unprofiled steps before them, and the load average per CPU; None if unknown.

    The load is that of the rank's machine that had most.
    """

    step_ns: Ints | None
    load: float | None


def captured(side: Side) -> Captured | None:
    """What the captures of a side say; None unless all its traces are of captures."""
    records = [unprofiled_before(path) for path in side.paths]
    known = [record for record in records if record is not None]
    if len(known) < len(records):
        return None
    before = list(filter(None, known))
    if len(before) < len(known):
        return Captured(None, None)
    times = np.concatenate([np.asarray(one["step_ns"], dtype=np.int64) for one in before])
    return Captured(times, max(one["load_average"] / one["cpus"] for one in before))


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
