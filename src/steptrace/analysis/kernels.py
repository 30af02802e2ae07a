"""GPU time by kernel name, and recurring sequences of kernels.

A frequent, long sequence is a candidate for fusion, a graph or `torch.compile`: `span_ns` less `kernel_ns` is the time
of its gaps.

If calls of one name are nested, only the outermost one counts. An operator's work is the work launched inside it on its
thread. A label also has the work that other training threads launched meanwhile: the backward pass runs in a thread of
its own. Marks of steps are not labels here. Holistic Trace Analysis counts only the operators of the smallest depth,
without other threads.
"""

from itertools import combinations, groupby
from typing import Annotated, Any, Final

import numpy as np
import pandas as pd

from steptrace import intervals
from steptrace.analysis.common.activity import activity, launches_measured, outside_steps
from steptrace.analysis.common.call_tree import LABEL, OP, call_tree, inside_same, kernel_nodes
from steptrace.analysis.common.kernel_names import short_name, short_names
from steptrace.analysis.common.registry import part, table, without_rows_of
from steptrace.documents.base import Document, field, key
from steptrace.documents.kernels import KernelName, KernelType, Sequence, SequenceEntry
from steptrace.documents.table import frame_of, records, rows, validate
from steptrace.intervals import Ints
from steptrace.trace.columns import marks_steps
from steptrace.trace.model import Trace, on_training, once

_KEYS = ["name", "kind"]


@table("kernel_names", KernelName)
@once
@without_rows_of("kernels", KernelName)
def kernel_table(trace: Trace) -> pd.DataFrame:
    """The activities of one GPU by name, the one with the most time first (table `kernel_names`)."""
    return _by_name(trace.kernels[(trace.kernels["device"] == trace.device).to_numpy()])


@once
@without_rows_of("kernels", KernelName)
def recorded_kernels(trace: Trace) -> pd.DataFrame:
    """The same without work left over from steps before the recorded ones: its sums are the steps' own."""
    return _by_name(trace.kernels[(trace.kernels["device"] == trace.device).to_numpy() & ~outside_steps(trace)])


@part("kernels")
def kernels_of_steps(trace: Trace) -> tuple[KernelName, ...]:
    """The rows of `recorded_kernels`, for summary.json."""
    return rows(recorded_kernels(trace), KernelName)


def _by_name(kernels: pd.DataFrame) -> pd.DataFrame:
    # By category, since sorting the texts takes ten times as long.
    columns = {name: kernels[name].cat.reorder_categories(sorted(kernels[name].cat.categories)) for name in _KEYS}
    groups = kernels.assign(**columns).groupby(_KEYS, sort=True, observed=True)["dur"]
    table = groups.agg(
        count="size", sum_ns="sum", mean_ns="mean", median_ns="median", min_ns="min", max_ns="max", std_ns="std"
    ).reset_index()
    table = table.astype(dict.fromkeys(_KEYS, str)).rename(columns={"kind": "class"})
    table["short_name"] = table["name"].map(short_names(table["name"]))
    total = int(table["sum_ns"].sum())
    table["share"] = table["sum_ns"] / total if total else 0.0
    table = table.sort_values(["sum_ns", "name"], ascending=[False, True], kind="stable", ignore_index=True)
    return validate(table, KernelName)


@table("kernel_types", KernelType)
@once
@without_rows_of("kernels", KernelType)
def kernel_types(trace: Trace) -> pd.DataFrame:
    """The time of each combination of classes that ran on a GPU at once (table `kernel_types`)."""
    gpu = activity(trace)
    spans = {"compute": gpu.compute, "comm": gpu.comm, "memory": gpu.memory}
    busy = intervals.measure(gpu.busy)
    rows = []
    for size in (1, 2, 3):
        for classes in combinations(spans, size):
            together = gpu.busy
            for name, of_class in spans.items():
                cut = intervals.intersect if name in classes else intervals.subtract
                together = cut(together, of_class)
            if ns := intervals.measure(together):
                rows.append({"classes": " + ".join(classes), "ns": ns, "busy_share": ns / busy})
    return frame_of(KernelType, rows)


@part("kernel_types")
def classes_of_kernels(trace: Trace) -> tuple[KernelType, ...]:
    """The rows of `kernel_types`, for summary.json."""
    return rows(kernel_types(trace), KernelType)


class SequenceRow(Document, frozen=True):
    """One sequence of GPU activities, in order of their start, that every call of a name counted here launched."""

    kind: Annotated[str, key("", "`op` or `label`.")]
    name: Annotated[str, key("", "The operator or label.")]
    length: Annotated[int, field("Number of activities in the sequence.")]
    count: Annotated[int, field("Number of calls that launched exactly this sequence.")]
    kernel_ns: Annotated[int, field("Lengths of the activities, summed over all calls.")]
    span_ns: Annotated[int, field("From the first one's start to the last one's end, summed over all calls.")]
    host_ns: Annotated[int, field("Lengths of the calls on the host, summed.")]
    kernels: Annotated[str, key("", "Names of the activities, one a line.")]


#: How many calls are processed at a time.
_AT_ONCE: Final = 1 << 14
#: A sequence has at least two activities.
MINIMUM_LENGTH = 2
#: The most sequences in summary.json, and the most entries of each.
MOST = 20
MOST_ENTRIES = 30


@table("sequences", SequenceRow, of_call_tree=True)
@once
@without_rows_of("kernels", SequenceRow)
def kernel_sequences(trace: Trace) -> pd.DataFrame:
    """The sequences under every operator and label: the table `sequences`, the most GPU time first.

    A call is left out if its caller launched exactly the same work.
    """
    tree = call_tree(trace)
    node, order = _work_by_call(trace)
    calls, at_node, after_node = _calls(trace, tree, node)
    # The time of each launch on a training thread; work of other threads comes last.
    launch_ts = tree["ts"].to_numpy()[node]
    launched = np.where(on_training(trace, tree[["thread"]].iloc[node]), launch_ts, np.iinfo(np.int64).max)
    by_time = np.argsort(launched, kind="stable")
    launched = launched[by_time]
    by_launch = order[by_time]
    is_label = (calls["kind"] == "label").to_numpy() & calls["training"].to_numpy()
    start = calls["ts"].to_numpy()
    first, stop = (np.searchsorted(launched, start + length) for length in (0, calls["host_ns"].to_numpy()))
    is_label &= stop - first != after_node - at_node  # a label with its own thread's work alone is like an operator
    first, stop = np.where(is_label, first, at_node), np.where(is_label, stop, after_node)
    enough = np.flatnonzero((stop - first >= MINIMUM_LENGTH) & (stop > first))
    # Of nested calls with the same work the outermost, which is the first in the tree.
    work = calls[["thread"]].assign(first=first, stop=stop, label=is_label).iloc[enough]
    enough = enough[~work.duplicated().to_numpy()]
    sequences: dict[tuple[Any, ...], list[int]] = {}
    kernels = trace.kernels
    codes = kernels["name"].cat.codes.to_numpy().astype(np.int32)
    begin = kernels["ts"].to_numpy()
    end = (kernels["ts"] + kernels["dur"]).to_numpy()
    del work, launched, launch_ts
    of_kind, of_name = calls["kind"].cat, calls["name"].cat
    # In portions, since lists of all calls' values would be the peak of memory.
    for portion in np.array_split(enough, len(enough) // _AT_ONCE + 1):
        columns = (of_kind.codes, of_name.codes, calls["host_ns"])
        values = [column.to_numpy()[portion].tolist() for column in columns]
        for call, a, b, kind, name, host_ns in zip(portion, first[portion], stop[portion], *values, strict=True):
            rows = np.sort((by_launch if is_label[call] else order)[a:b])  # kernels are sorted by start
            ends = end[rows]
            key = (of_kind.categories[kind], of_name.categories[name], codes[rows].tobytes())
            sums = sequences.setdefault(key, [0, 0, 0, 0])
            sums[0] += 1
            sums[1] += int((ends - begin[rows]).sum())
            sums[2] += int(ends.max() - begin[rows[0]])
            sums[3] += host_ns
    return _sequence_table(sequences, kernels["name"].cat.categories)


@part("sequences")
def frequent_sequences(trace: Trace) -> tuple[Sequence, ...]:
    """The recurring sequences with the most GPU time, for summary.json."""
    return most_frequent(kernel_sequences(trace)) if launches_measured(trace) else ()


def most_frequent(sequences: pd.DataFrame) -> tuple[Sequence, ...]:
    """The recurring sequences with the most GPU time, for summary.json.

    Activities have short names, and neighbours of one name are one entry; `left_out` counts the entries not listed.
    """
    most = []
    for row in records(sequences[(sequences["count"] > 1).to_numpy()].head(MOST)):
        names = groupby(short_name(name) for name in row.pop("kernels").split("\n"))
        entries = tuple(SequenceEntry(name=name, times=len(list(same))) for name, same in names)
        left_out = max(len(entries) - MOST_ENTRIES, 0)
        most.append(Sequence(**row, kernels=entries[:MOST_ENTRIES], left_out=left_out))
    return tuple(most)


def _calls(trace: Trace, tree: pd.DataFrame, node: Ints) -> tuple[pd.DataFrame, Ints, Ints]:
    """The outermost calls of each operator and label, operators with too little work left out.

    Args:
        trace: the trace.
        tree: its call tree.
        node: the rows of the tree that launched work, in order.

    Returns the calls, and for each the range of `node` that lies in its subtree.
    """
    kind = tree["kind"].cat.codes.to_numpy()
    size = tree["size"].to_numpy()
    wanted = ((kind == OP) | (kind == LABEL)) & ~marks_steps(tree)
    key = kind.astype(np.int32)
    key *= len(tree["name"].cat.categories)
    key += tree["name"].cat.codes.to_numpy()
    key += 1
    key[~wanted] = 0
    wanted &= ~inside_same(key, size)
    del key
    # A label may have work of other threads. Most operators launch little: a table of them all would take far more.
    wanted &= (kind == LABEL) | (tree["kernels"].to_numpy(dtype=np.int32, na_value=0) >= MINIMUM_LENGTH)
    rows = np.flatnonzero(wanted)
    first, stop = np.searchsorted(node, rows), np.searchsorted(node, rows + size[rows])
    calls = tree[["kind", "name", "thread", "ts", "host_ns"]].iloc[rows].reset_index(drop=True)
    return calls.assign(training=on_training(trace, calls)), first, stop


def _work_by_call(trace: Trace) -> tuple[Ints, Ints]:
    """Rows of `call_tree` that launched work, in order, and for each the activity."""
    node = kernel_nodes(trace)
    linked = np.flatnonzero(node >= 0)
    order = linked[np.argsort(node[linked], kind="stable")]
    return node[order], order


def _sequence_table(sequences: dict[tuple[Any, ...], list[int]], names: pd.Index) -> pd.DataFrame:
    rows: list[dict[str, Any]] = [
        {
            "kind": str(kind),
            "name": str(name),
            "length": len(sequence) // 4,
            **dict(zip(("count", "kernel_ns", "span_ns", "host_ns"), sums, strict=True)),
            "kernels": "\n".join(str(names[code]) for code in np.frombuffer(sequence, dtype=np.int32)),
        }
        for (kind, name, sequence), sums in sequences.items()
    ]
    rows.sort(key=lambda row: (-row["kernel_ns"], row["kind"], row["name"], row["kernels"]))
    return frame_of(SequenceRow, rows)
