"""Which operators of the steps are placed on the GPU, which on the host, and which run in the data loader.

The TensorFlow Profiler shows the same two shares: operators on the host keep a GPU waiting, and nobody planned them.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np
import pandas as pd

from steptrace import intervals
from steptrace.analysis.common.activity import launches_measured
from steptrace.analysis.common.gaps import loader_spans
from steptrace.analysis.common.registry import table_part
from steptrace.documents.subjects.placement import LONG_NS, Placement
from steptrace.documents.table import frame_of
from steptrace.intervals import Ints
from steptrace.trace.columns import has_ancestor, map_names, row_numbers, start_end
from steptrace.trace.model import Trace, launching_op, on_training, once
from steptrace.trace.names import is_own_operator, uses_gpu

#: The sides, in the order of the table.
_SIDES: Final = ("gpu", "host", "loader", "none")
#: Operators of ATen that by themselves only make a view, allocate, or look at a tensor, however slow the host is.
_NO_WORK: Final = frozenset(
    (
        "t",
        "transpose",
        "numpy_T",
        "mT",
        "permute",
        "movedim",
        "swapaxes",
        "view",
        "view_as",
        "reshape",
        "reshape_as",
        "_reshape_alias",
        "_unsafe_view",
        "as_strided",
        "as_strided_",
        "expand",
        "expand_as",
        "select",
        "slice",
        "narrow",
        "squeeze",
        "squeeze_",
        "unsqueeze",
        "unsqueeze_",
        "unbind",
        "split",
        "split_with_sizes",
        "chunk",
        "tensor_split",
        "flatten",
        "unflatten",
        "unflatten_dense_tensors",
        "diagonal",
        "unfold",
        "detach",
        "detach_",
        "alias",
        "lift_fresh",
        "real",
        "imag",
        "view_as_real",
        "view_as_complex",
        "contiguous",
        "to",
        "type_as",
        "empty",
        "empty_like",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
        "new_tensor",
        "resize_",
        "resize_as_",
        "set_",
        "result_type",
        "can_cast",
        "is_nonzero",
        "is_same_size",
        "size",
        "stride",
        "dim",
        "numel",
        "requires_grad_",
        "retain_grad",
        "broadcast_tensors",
        "expand_",
        "align_to",
        "rename",
        "positive",
        "conj",
        "resolve_conj",
        "resolve_neg",
        "data",
        "output_nr",
        "_version",
        "record_stream",
        "is_pinned",
    )
)


def computes_something(name: str) -> bool:
    """Whether an operator that launches nothing computes on the host, judged by its name.

    Others, and nodes of the autograd engine (`torch::autograd::AccumulateGrad`), compute by the operators inside them.
    """
    return not name.startswith("torch::autograd::") and name.removeprefix("aten::") not in _NO_WORK


@table_part("placement")
@once
def placement(trace: Trace) -> pd.DataFrame:
    """The operators of the steps by side (table `placement`); of a trace without steps all operators.

    Where launches are missing, operators without one need not be on the host: there are no rows.
    """
    ops = trace.ops
    if not len(ops) or not launches_measured(trace):
        return frame_of(Placement)
    is_own = map_names(ops["name"], is_own_operator)
    parent = row_numbers(ops["parent"])
    chosen = is_own & ~has_ancestor(parent, is_own) & on_training(trace, ops)
    if len(trace.steps):
        chosen &= row_numbers(ops["step"]) >= 0
    device_ns = _device_ns(trace, parent)
    calls = row_numbers(trace.launches["op"])[map_names(trace.launches["name"], uses_gpu)]
    for rows_up in _upwards(np.unique(calls[calls >= 0]), parent):
        device_ns[rows_up] = np.maximum(device_ns[rows_up], 0)
    start, end = start_end(ops)
    in_loader = 2 * intervals.measure_within(loader_spans(trace), start, end) > end - start
    computes = np.zeros(len(ops), dtype=bool)
    for rows_up in _upwards(np.flatnonzero(is_own & map_names(ops["name"], computes_something)), parent):
        computes[rows_up] = True
    side = np.select([device_ns >= 0, in_loader, computes], [0, 2, 1], default=3)
    rows = pd.DataFrame({"name": ops["name"].astype(str), "side": side, "host_ns": end - start})
    rows = rows.assign(device_ns=device_ns)[chosen]
    sides = [number for number in range(len(_SIDES)) if (rows["side"] == number).any()]
    return frame_of(Placement, [_row(rows, number) for number in sides])


def _row(rows: pd.DataFrame, number: int) -> dict[str, object]:
    of_side = rows[rows["side"] == number]
    by_name = of_side.groupby("name")["host_ns"].sum().sort_values(ascending=False, kind="stable")
    return {
        "placed": _SIDES[number],
        "count": len(of_side),
        "host_ns": int(of_side["host_ns"].sum()),
        "device_ns": int(of_side["device_ns"].sum()) if number == 0 else None,
        "long_ns": int(of_side["host_ns"][of_side["host_ns"] >= LONG_NS].sum()),
        "most": str(by_name.index[0]),
        "most_ns": int(by_name.iloc[0]),
    }


def _device_ns(trace: Trace, parent: Ints) -> Ints:
    """The lengths of the GPU work that each operator launches, with the operators inside it; -1 where it has none."""
    launched = launching_op(trace)
    linked = np.flatnonzero(launched >= 0)
    direct = np.bincount(launched[linked], trace.kernels["dur"].to_numpy()[linked], len(parent)).astype(np.int64)
    time = np.full(len(parent), -1, dtype=np.int64)
    source = np.unique(launched[linked])
    row = source
    length = direct[source]
    while len(row):
        time[row] = np.maximum(time[row], 0)
        np.add.at(time, row, length)
        row = parent[row]
        length = length[row >= 0]
        row = row[row >= 0]
    return time


def _upwards(rows: Ints, parent: Ints) -> Iterator[Ints]:
    """These rows, those around them, and so on to the outermost."""
    while len(rows):
        yield rows
        rows = np.unique(parent[rows])
        rows = rows[rows >= 0]
