"""Which kernels a GPU spent its time in, by name."""

from itertools import combinations

import pandas as pd

from steptrace import intervals, schema
from steptrace.analysis.common.busy import activity
from steptrace.analysis.common.kernel_names import short_names
from steptrace.documents.rows import KernelName, KernelType, table_of
from steptrace.trace.model import Trace

_KEYS = ["name", "kind"]

KERNEL_NAMES = table_of("kernel_names", KernelName, "name", "class")
KERNEL_TYPES = table_of("kernel_types", KernelType, "classes")


def kernel_table(trace: Trace, device: int) -> pd.DataFrame:
    """The activities of one GPU by name, the one with the most time first (table `kernel_names`)."""
    kernels = trace.kernels[(trace.kernels["device"] == device).to_numpy()]
    # Categories are sorted: of texts, row by row, that takes ten times as long.
    columns = {name: kernels[name].cat.reorder_categories(sorted(kernels[name].cat.categories)) for name in _KEYS}
    groups = kernels.assign(**columns).groupby(_KEYS, sort=True, observed=True)["dur"]
    table = groups.agg(
        count="size", sum_ns="sum", mean_ns="mean", median_ns="median", min_ns="min", max_ns="max", std_ns="std"
    ).reset_index()
    table = table.astype(dict.fromkeys(_KEYS, str))
    table = table.rename(columns={"kind": "class"})
    short = short_names(table["name"])
    table.insert(1, "short_name", [short[name] for name in table["name"]])
    total = int(table["sum_ns"].sum())
    table["share"] = table["sum_ns"] / total if total else 0.0
    table = table.sort_values(["sum_ns", "name"], ascending=[False, True], kind="stable").reset_index(drop=True)
    return schema.validate(table, KERNEL_NAMES)


def kernel_types(trace: Trace, device: int) -> pd.DataFrame:
    """How long which classes ran on a GPU, alone and on top of each other (table `kernel_types`)."""
    gpu = activity(trace, device)
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
    table = pd.DataFrame(rows) if rows else schema.empty(KERNEL_TYPES)
    return schema.validate(table, KERNEL_TYPES)
