"""The GPU work of one operator, each activity with its delay behind the call that launched it."""

from typing import Annotated

import numpy as np
import pandas as pd

from steptrace.analysis.common.call_tree import call_tree, kernel_nodes, kernel_origins
from steptrace.documents.base import Document, field, reference
from steptrace.documents.table import frame_of
from steptrace.trace.columns import references, row_numbers
from steptrace.trace.model import Trace


class OperatorKernel(Document, frozen=True):
    """One GPU activity that an operator, or an operator within it, launched."""

    kernel: Annotated[int, reference("kernels", is_key=True)]
    name: Annotated[str, field("Name of the kernel, copy or set.")]
    op: Annotated[str | None, field("The innermost operator around its launch.")]
    call: Annotated[str, field("Name of the call that launched it.")]
    step: Annotated[int | None, reference("steps")]
    stream: Annotated[int, field("Its stream.")]
    dur_ns: Annotated[int, field("How long it ran.")]
    delay_ns: Annotated[
        int, field("From the end of the call that launched it, or its graph, to its start; 0 if it began first.")
    ]
    file: Annotated[str | None, field("File of the program's line that caused it.")]
    line: Annotated[int | None, field("The line.")]


def operator_kernels(trace: Trace, operator: str) -> pd.DataFrame:
    """The activities below every call of the operators of this name, in order of their start.

    Work of the backward pass is below the operators that autograd calls, not below those of the forward pass.
    """
    tree = call_tree(trace)
    node = kernel_nodes(trace)
    calls = np.flatnonzero(((tree["kind"] == "op") & (tree["name"] == operator)).to_numpy())
    within = np.zeros(len(tree) + 1, dtype=np.int64)
    np.add.at(within, calls, 1)
    np.add.at(within, calls + tree["size"].to_numpy()[calls], -1)
    below = np.append(np.cumsum(within)[:-1] > 0, False)  # the last one: of activities without a call
    rows = np.flatnonzero(below[node])
    kernels = trace.kernels.iloc[rows]
    origins = kernel_origins(trace).iloc[rows]
    launches = trace.launches.iloc[row_numbers(kernels["launch"])]
    ended = (launches["ts"] + launches["dur"]).to_numpy()
    columns = {
        "kernel": rows,
        "name": kernels["name"].to_numpy(),
        "op": origins["op"].to_numpy(),
        "call": launches["name"].to_numpy(),
        "step": references(row_numbers(kernels["step"])),
        "stream": kernels["stream"].to_numpy(),
        "dur_ns": kernels["dur"].to_numpy(),
        "delay_ns": np.maximum(kernels["ts"].to_numpy() - ended, 0),
        "file": origins["file"].to_numpy(),
        "line": origins["line"].to_numpy(),
    }
    return frame_of(OperatorKernel, pd.DataFrame(columns))
