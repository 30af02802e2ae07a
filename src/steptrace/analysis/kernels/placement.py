"""Where operators run: on the GPU or on the host, by count and by time.

An operator is on the device if it launched GPU work itself. Of the others those count that work themselves, by at
least half of their time: `aten::linear` only passes on, and is placed where its `aten::addmm` is. Operators that make
or view tensors without touching their elements are counted apart, since nothing could move them to a GPU.
"""

from typing import Final

import numpy as np

from steptrace.analysis.common.call_tree import tree_of
from steptrace.analysis.common.steps import is_own_operator
from steptrace.documents.summary import Placement
from steptrace.trace.columns import judge_names, row_numbers, take
from steptrace.trace.model import Trace, on_training

#: Operators that change how a tensor is seen, or get memory for one.
VIEWS: Final = frozenset(
    f"aten::{name}"
    for name in (
        "alias", "as_strided", "as_strided_", "chunk", "contiguous", "detach", "detach_", "diagonal", "empty",
        "empty_like", "empty_strided", "expand", "expand_as", "flatten", "is_nonzero", "is_same_size", "lift_fresh",
        "movedim", "narrow", "new_empty", "new_empty_strided", "numpy_T", "permute", "pin_memory", "is_pinned",
        "reshape", "_reshape_alias", "resize_", "resize_as_", "select", "set_", "size", "slice", "split",
        "split_with_sizes", "squeeze", "squeeze_", "stride", "t", "t_", "transpose", "transpose_", "T", "unbind",
        "unflatten", "unfold", "_unsafe_view", "unsafe_split", "unsqueeze", "unsqueeze_", "view", "view_as",
        "view_as_complex", "view_as_real", "_to_copy_alias", "swapaxes", "result_type", "to", "type_as",
    )
)  # fmt: skip


def placement(trace: Trace) -> Placement | None:
    """Where the operators of the training threads ran; None for a trace that holds no operators."""
    ops = trace.ops
    if len(ops) == 0:
        return None
    counts = judge_names(ops["name"], is_own_operator) & on_training(trace, ops)
    if len(trace.steps):
        counts &= ops["step"].notna().to_numpy()
    op = take(row_numbers(trace.launches["op"]), row_numbers(trace.kernels["launch"]))
    known = op >= 0
    device_ns = np.zeros(len(ops), dtype=np.int64)
    np.add.at(device_ns, op[known], trace.kernels["dur"].to_numpy()[known])
    launched = np.zeros(len(ops), dtype=bool)
    launched[op[known]] = True
    views = judge_names(ops["name"], VIEWS.__contains__)
    # Host time of each operator without and with the operators inside.
    operators = tree_of([ops])
    own_ns, whole_ns = operators["own"], operators["host"]
    on_device, rest = counts & launched, counts & ~launched
    on_host = rest & ~views & (2 * own_ns >= whole_ns)
    device, host, view = (int(rows.sum()) for rows in (on_device, on_host, rest & views))
    return Placement(
        ops_total=device + host + view,
        ops_device=device,
        ops_host=host,
        ops_view=view,
        device_ns=int(device_ns[on_device].sum()) if len(trace.kernels) else None,
        host_ns=int(own_ns[rest & ~views].sum()),
        view_ns=int(own_ns[rest & views].sum()),
    )
