"""All-reduces that a step need not have made: those of passes before its last one.

Where a step takes several batches (gradient accumulation), gradients are needed on all ranks once, at its end. Without
`no_sync`, DistributedDataParallel reduces them in every pass all the same. Its own label around each forward pass tells
the passes apart: what is asked for after one and before the next belongs to it.
"""

from typing import Final

import numpy as np
import pandas as pd

from steptrace.analysis.common.launches import launched_at
from steptrace.analysis.communication.all_reduce import all_reduces, figures_of
from steptrace.documents.summary import ReducePasses, Redundant
from steptrace.intervals import Ints
from steptrace.trace.columns import row_numbers
from steptrace.trace.model import Trace

FORWARD: Final = "DistributedDataParallel.forward"
#: A pass that reduces this share of what its step's last one does reduces gradients, not some other small thing.
_GRADIENTS: Final = 0.5


def reduce_passes(trace: Trace, device: int | None) -> ReducePasses | None:
    """The redundant all-reduces of a trace's steps; None without steps, labelled passes, or all-reduces."""
    labels = trace.annotations
    forward = labels[((labels["name"] == FORWARD) & labels["step"].notna()).to_numpy(dtype=bool)]
    chosen = all_reduces(trace, device)
    if len(trace.steps) == 0 or len(forward) == 0 or chosen is None:
        return None
    source, reduces, _ = chosen
    reduces = reduces.assign(asked=_asked(trace, source, reduces))
    step, begun = row_numbers(forward["step"]), forward["ts"].to_numpy()
    redundant = [
        _of_step(reduces[(reduces["step"] == k).to_numpy()], np.sort(begun[step == k])) for k in range(len(trace.steps))
    ]
    found = pd.concat(redundant)
    figures = figures_of(found, None)
    return ReducePasses(
        passes_per_step=len(forward) / len(trace.steps),
        redundant=Redundant(count=len(found), bytes=figures["bytes"], measured_ns=figures["measured_ns"]),
    )


def _of_step(reduces: pd.DataFrame, begun: Ints) -> pd.DataFrame:
    """The all-reduces of one step in passes that reduce gradients, the last pass left out."""
    of_pass = np.searchsorted(begun, reduces["asked"].to_numpy(dtype=np.int64), side="right") - 1
    last = len(begun) - 1
    known = reduces["bytes"].notna().all()
    weight = reduces["bytes"].to_numpy(dtype=np.float64) if known else np.ones(len(reduces))
    sums = np.bincount(of_pass[of_pass >= 0], weight[of_pass >= 0], minlength=max(last + 1, 1))
    wanted = (of_pass >= 0) & (of_pass < last) & (sums[last] > 0)
    wanted &= sums[np.maximum(of_pass, 0)] >= _GRADIENTS * sums[last]
    redundant: pd.DataFrame = reduces[wanted]
    return redundant


def _asked(trace: Trace, source: str, found: pd.DataFrame) -> Ints:
    """When the host asked for each all-reduce."""
    launched = launched_at(trace)[found["kernel"]] if source == "gpu" else np.full(len(found), -1, dtype=np.int64)
    return np.where(launched >= 0, launched, found["ts"])
