"""Memory that grows from step to step, and the origins of the blocks that stay.

A step adds its blocks that outlive the whole next step, less older blocks released in that step. So a batch that the
next step replaces adds nothing, nor does state that every step creates anew. Only blocks that are live at the window's
end count: a queue of batches for later steps is not growth.

Blocks of a few values are ignored, however many: a measured training keeps its losses, too.

The last step is left out, since it is unknown which of its blocks would stay; and so is a program's first step
(`ProfilerStep#0`), which creates optimizer state and caches.
"""

from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from steptrace.analysis.memory.measure import life, origins
from steptrace.intervals import Ints
from steptrace.trace.events import MISSING
from steptrace.trace.model import Trace
from steptrace.trace.source import SourceLines

#: Bytes up to which a block is ignored: the CUDA allocator's smallest block.
_VALUE_BYTES: Final = 512


def memory_growth(
    trace: Trace, blocks: pd.DataFrame, lines: SourceLines | None
) -> tuple[tuple[int, ...], pd.DataFrame]:
    """The bytes that each step added, and the origins of the blocks that stay; both empty without two steps.

    Args:
        trace: the trace.
        blocks: one device's `memory_blocks`.
        lines: the recorded source lines.
    """
    number = trace.steps["index"].to_numpy()
    if len(number) < 2:
        return (), origins(trace, blocks.iloc[:0], lines)
    blocks = blocks[(blocks["bytes"] > _VALUE_BYTES).to_numpy()]
    born, stays, added = _left_behind(trace, blocks)
    counts = np.append(number[:-1] > 0, False)
    size = np.minimum(added, _sum_by(born[stays], blocks["bytes"].to_numpy()[stays], len(number)))[counts]
    return tuple(size.tolist()), origins(trace, blocks[stays & counts[born]], lines)


def _left_behind(trace: Trace, blocks: pd.DataFrame) -> tuple[Ints, NDArray[np.bool_], Ints]:
    """Each block's step (-1: none), whether it is live at the end, and the bytes that each step added."""
    start, size = trace.steps["ts"].to_numpy(), blocks["bytes"].to_numpy()
    last = int(start[-1] + trace.steps["host_dur"].iloc[-1])
    begin, end = life(blocks)
    born = np.searchsorted(start, begin, side="right") - 1
    stays = ((end == MISSING) | (end > last)) & (begin < last)
    released = np.where(stays, len(start), np.searchsorted(start, end, side="right") - 1)
    outlives = released > born + 1
    added = _sum_by(born[outlives & (born >= 0)], size[outlives & (born >= 0)], len(start))
    gone = outlives & ~stays & (released > 0)
    return (
        np.where(begin < last, born, -1),
        stays & (born >= 0),
        added - _sum_by(released[gone] - 1, size[gone], len(start)),
    )


def _sum_by(step: Ints, size: Ints, steps: int) -> Ints:
    return np.bincount(step, weights=size, minlength=steps).astype(np.int64)
