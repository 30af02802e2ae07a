"""GPU work inside CUDA graphs by annotation.

PyTorch writes an annotation into the arguments of each activity of a graph's replay: a text as `str` or `annotation`,
of a dictionary the entry `name`.
"""

import pandas as pd

from steptrace.analysis.common.activity import outside_steps
from steptrace.analysis.common.kernel_names import short_name
from steptrace.analysis.common.registry import table_part
from steptrace.documents.subjects.graph_annotations import GraphAnnotation
from steptrace.documents.table import frame_of
from steptrace.trace.model import Trace, once

#: The most annotations with a row of their own. A program that numbers its annotations can have a million.
MOST = 1000
#: The name of the row of all others.
OTHERS = "(others)"


@table_part("graph_annotations")
@once
def graph_annotations(trace: Trace) -> pd.DataFrame:
    """The annotated work of the analysed GPU by annotation (table `graph_annotations`), the most time first.

    Annotations beyond the `MOST` with most time are one row, the last.
    """
    kernels = trace.kernels
    wanted = kernels["annotation"].notna().to_numpy() & (kernels["device"] == trace.device).to_numpy()
    if not wanted.any():
        return frame_of(GraphAnnotation)
    work = kernels[["annotation", "name", "dur"]][wanted & ~outside_steps(trace)].astype(
        {"annotation": str, "name": str}
    )
    sums = work.groupby("annotation", sort=True)["dur"].sum()
    if len(sums) > MOST:
        kept = sums.sort_values(ascending=False, kind="stable").index[:MOST]
        work["annotation"] = work["annotation"].where(work["annotation"].isin(kept), OTHERS)
    by_kernel = work.groupby(["annotation", "name"], sort=True)["dur"].sum().reset_index()
    longest = by_kernel.loc[by_kernel.groupby("annotation")["dur"].idxmax()].set_index("annotation")["name"]
    groups = work.groupby("annotation", sort=True)["dur"]
    table = groups.agg(count="size", device_ns="sum", longest_ns="max").reset_index()
    table["kernel"] = [short_name(name) for name in longest[table["annotation"]].tolist()]
    table["is_rest"] = (table["annotation"] == OTHERS) & (len(sums) > MOST)
    table = table.sort_values(["is_rest", "device_ns"], ascending=[True, False], kind="stable")
    return frame_of(GraphAnnotation, table.drop(columns="is_rest"))
