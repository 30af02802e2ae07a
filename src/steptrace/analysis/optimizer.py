"""Optimizer calls: updates by parameter or by many tensors at once; gradients set to zero or to None.

PyTorch puts a label around every `Optimizer.step` and `Optimizer.zero_grad`. If a step's closure computes the gradients
(LBFGS, Lightning), the update begins at the end of the last backward pass inside the label. The names of the operators
inside show the kind of update (`_foreach_`, `_fused_`, or neither); TorchTidy (torch.profiler._pattern_matcher) looks
for the Python frames `_single_tensor_...` instead.
"""

import re
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from steptrace.analysis.common.labels import label_times
from steptrace.documents.labels import OptimizerCall
from steptrace.documents.table import frame_of
from steptrace.trace.columns import Rows, nearest, row_numbers, start_end, take
from steptrace.trace.model import Trace, once
from steptrace.trace.names import ENGINE

_LABEL: Final = re.compile(r"^Optimizer\.(step|zero_grad)#(.+)\.(?:step|zero_grad)\Z")


@once
def optimizer_calls(trace: Trace) -> pd.DataFrame:
    """The labelled calls of optimizers, by label (table `optimizer_calls`)."""
    labels = trace.labels
    matches = {str(name): match for name in labels["name"].unique() if (match := _LABEL.match(str(name)))}
    if not matches:
        return frame_of(OptimizerCall)
    trace = _without_closures(trace, labels["name"].isin(list(matches)).to_numpy(dtype=bool))
    labels = trace.labels
    names = labels["name"].astype(object)
    parent = row_numbers(labels["parent"])
    holder = nearest(parent, names.isin(list(matches)).to_numpy(dtype=bool))
    operators = _operators(trace, holder, names)
    times = label_times(trace).set_index("label").to_dict("index")
    above = take(holder, parent)
    inside_own = (above >= 0) & (names.to_numpy()[np.maximum(above, 0)] == names.to_numpy())
    calls = names[~inside_own].value_counts()
    rows = []
    for name, match in sorted(matches.items()):
        own = operators[operators["label"] == name]
        common = own["name"].value_counts()
        rows.append(
            {
                "label": name,
                "method": match[1],
                "optimizer": match[2],
                "count": int(calls.get(name, 0)),
                "host_ns": times[name]["host_ns"],
                "operators": len(own),
                "foreach": int(own["name"].str.contains("_foreach_", regex=False).sum()),
                "fused": int(own["name"].str.contains("fused", case=False, regex=False).sum()),
                "zeroing": int(own["name"].isin(["aten::zero_", "aten::_foreach_zero_"]).sum()),
                "most_common": None if common.empty else min(common.index[common == common.max()]),
                "most_common_count": 0 if common.empty else int(common.max()),
                "kernels": times[name]["kernels"],
                "device_ns": times[name]["device_ns"],
            }
        )
    return frame_of(OptimizerCall, rows)


def _without_closures(trace: Trace, optimizers: NDArray[np.bool_]) -> Trace:
    """The trace with each optimizer's label cut to begin at the end of the backward passes inside it."""
    nodes = trace.ops[trace.ops["name"].astype(str).str.startswith(ENGINE).to_numpy(dtype=bool)]
    if nodes.empty:
        return trace
    nodes = nodes.sort_values("ts")
    begin, until = nodes["ts"].to_numpy(), np.maximum.accumulate((nodes["ts"] + nodes["dur"]).to_numpy())
    labels = trace.labels
    start, end = start_end(labels)
    last = np.searchsorted(begin, end) - 1  # the last node that begins before the label ends
    inside = optimizers & (last >= 0) & (begin[last] >= start)
    moved = np.where(inside, np.minimum(until[last], end), start)
    return replace(trace, labels=labels.assign(ts=moved, dur=end - moved))


def _operators(trace: Trace, holder: Rows, names: "pd.Series[Any]") -> pd.DataFrame:
    """The operators called directly under each label: `name` and the `label` that holds them."""
    label = take(holder, row_numbers(trace.ops["label"]))
    caller = row_numbers(trace.ops["parent"])
    # Operators called by one inside the label do not count; an operator around the label does not hide its children.
    direct = (label >= 0) & (take(label, caller) != label)
    direct &= trace.ops["ts"].to_numpy() >= take(trace.labels["ts"].to_numpy(), label)
    called = trace.ops["name"].astype(str).to_numpy(dtype=object)[direct]
    return pd.DataFrame({"name": called, "label": names.to_numpy()[label[direct]]}, dtype=object)
