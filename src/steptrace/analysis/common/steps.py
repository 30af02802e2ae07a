"""The training steps of a trace, and the parts of the training loop in them, labelled or not."""

import re
from typing import Final

import numpy as np
import pandas as pd

from steptrace.trace.columns import has_ancestor, row_numbers
from steptrace.trace.model import Trace, on_training
from steptrace.trace.names import LOADER_LABEL


def is_own_operator(name: str) -> bool:
    """Whether a name is an operator's own: it has a namespace, and is not a wrapper of the autograd engine."""
    return "::" in name and not name.startswith("autograd::")


#: The labels of the training loop, one after the other in a step.
HOST_PARTS: Final = ("data", "forward", "loss", "backward", "optimizer")
#: PyTorch's own labels, and their parts of a step.
_LABELS: Final = {"data": LOADER_LABEL, "optimizer": re.compile(r"^Optimizer\.")}


def is_training(trace: Trace) -> bool | None:
    """Whether a trace holds a backward pass or an optimizer step; None if that cannot be determined.

    A graph of kernels launched at once may hold either, and a trace without operators shows none.
    """
    labels = [str(name) for name in trace.labels["name"].unique()]
    if trace.ops["backward"].any() or any(
        name in ("backward", "optimizer") or name.startswith("Optimizer.") for name in labels
    ):
        return True
    graphs = any("GraphLaunch" in str(name) for name in trace.launches["name"].unique())
    return None if graphs or len(trace.ops) == 0 else False


def labelled_parts(trace: Trace, *, in_steps: bool = False) -> pd.DataFrame:
    """The labels of the training loop on training threads, in steps alone or anywhere.

    Other loops may compute the loss inside a part called forward: the time then belongs to the outer part.
    """
    labels = trace.labels
    wanted = labels["name"].isin(HOST_PARTS).to_numpy() & on_training(trace, labels)
    wanted &= labels["step"].notna().to_numpy() | (not in_steps)
    parts: pd.DataFrame = labels[wanted & ~has_ancestor(row_numbers(labels["parent"]), wanted)]
    return parts


def unlabelled_parts(trace: Trace) -> list[tuple[int, int, str]]:
    """Start, end and name of every `data`, `backward` and `optimizer` part on the training threads.

    A backward pass is the span of its operators between two other parts, or between two steps.
    """
    labels, ops = trace.labels, trace.ops
    labels = labels[on_training(trace, labels)]
    spans = [
        (int(ts), int(ts + dur), phase)
        for ts, dur, name in zip(labels["ts"], labels["dur"], labels["name"], strict=True)
        for phase, label in _LABELS.items()
        if label.match(str(name))
    ]
    backward = ops[ops["backward"].to_numpy(dtype=bool)]
    cuts = np.array(sorted({*(start for start, *_ in spans), *trace.steps["ts"]}), dtype=np.int64)
    piece = np.searchsorted(cuts, backward["ts"].to_numpy(), side="right")
    whole = pd.DataFrame({"piece": piece, "start": backward["ts"], "end": backward["ts"] + backward["dur"]})
    hulls = whole.groupby("piece").agg(start=("start", "min"), end=("end", "max"))
    spans += [(int(a), int(b), "backward") for a, b in zip(hulls["start"], hulls["end"], strict=True)]
    return spans
