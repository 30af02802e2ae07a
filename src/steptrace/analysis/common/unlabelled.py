"""The parts of a step of somebody else's training: by PyTorch's own labels and the operators of the backward pass."""

import numpy as np
import pandas as pd

from steptrace.trace.model import Trace

#: How PyTorch's own labels begin, and the part of a step that they are.
_BEGINS = {"enumerate(DataLoader)": "data", "Optimizer.": "optimizer"}


#: Labels of the training loop's own for what only training has.
_TRAINS = ("backward", "optimizer")


def is_training(trace: Trace) -> bool | None:
    """Whether a trace holds a backward pass or an optimizer step; None where that cannot be told.

    A graph of kernels launched at once may hold either, and a trace without operators shows none.
    """
    labels = [str(name) for name in trace.annotations["name"].unique()]
    if trace.ops["backward"].any() or any(name in _TRAINS or name.startswith("Optimizer.") for name in labels):
        return True
    graphs = any("GraphLaunch" in str(name) for name in trace.launches["name"].unique())
    return None if graphs or len(trace.ops) == 0 else False


def unlabelled_parts(trace: Trace) -> list[tuple[int, int, str]]:
    """Start, end and name of every `data`, `backward` and `optimizer` part; what is left over is no part.

    A backward pass is all operators of one between two of the others, or between two steps.
    """
    labels, ops = trace.annotations, trace.ops
    spans = [
        (int(ts), int(ts + dur), phase)
        for ts, dur, name in zip(labels["ts"], labels["dur"], labels["name"], strict=True)
        for start, phase in _BEGINS.items()
        if str(name).startswith(start)
    ]
    backward = ops[ops["backward"].to_numpy(dtype=bool)]
    cuts = np.array(sorted({*(start for start, *_ in spans), *trace.steps["ts"]}), dtype=np.int64)
    piece = np.searchsorted(cuts, backward["ts"].to_numpy(), side="right")
    whole = pd.DataFrame({"piece": piece, "start": backward["ts"], "end": backward["ts"] + backward["dur"]})
    hulls = whole.groupby("piece").agg(start=("start", "min"), end=("end", "max"))
    spans += [(int(a), int(b), "backward") for a, b in zip(hulls["start"], hulls["end"], strict=True)]
    return spans
