"""What is known of each collective on the GPU: its process group, number and size, from whoever says so.

PyTorch describes a collective on its kernel, or (older and AMD traces) on the `record_param_comms` operator around its
launch. Where neither does, operator and kernel name still tell an all-reduce from a broadcast.
"""

import numpy as np
import pandas as pd

from steptrace.schema import TABLES
from steptrace.trace import names as naming
from steptrace.trace.columns import Columns, Ints, Mask, by_name, nearest, row_numbers, take
from steptrace.trace.events import CollectiveArgs

_UNKNOWN = CollectiveArgs(*[None] * len(CollectiveArgs._fields))


def collectives_table(
    described: list[CollectiveArgs], kernels: pd.DataFrame, given: Ints, ops: Columns, op_of: tuple[Ints, pd.Index]
) -> pd.DataFrame:
    """The `collectives` table: one row per GPU activity of kind `comm`.

    Args:
        described: the descriptions in the trace.
        kernels: the `kernels` table.
        given: for each kernel its own description's place in `described`, -1 for none.
        ops: the operators' columns, `collective` (as `given`), `name` and `parent` among them.
        op_of: for each launch the row of its operator, -1 for none; and the text of each operator name's number.
    """
    rows = np.flatnonzero((kernels["kind"] == "comm").to_numpy())
    launch_op, names = op_of
    launch = row_numbers(kernels["launch"])[rows]
    op = take(launch_op, launch)
    around = _inherited(op, ops["parent"], ops["collective"] >= 0, ops["collective"])
    is_call = by_name(
        ops["name"], names, lambda n: naming.is_collective_op(n) and naming.collective_name(n) is not None
    )
    call = _inherited(op, ops["parent"], is_call, ops["name"])
    own = given[rows]
    place = np.where(own >= 0, own, around)
    kernel_names = kernels["name"].to_numpy(dtype=object)[rows]
    found = [described[i] if i >= 0 else _UNKNOWN for i in place]
    table = pd.DataFrame(found, columns=list(CollectiveArgs._fields), dtype=object)
    table["name"] = [
        _name(args.name, names[c] if c >= 0 else None, str(kernel))
        for args, c, kernel in zip(found, call, kernel_names, strict=True)
    ]
    table.insert(0, "kernel", rows.astype(np.int64))
    numbers = dict.fromkeys(("group_size", "sequence", "in_elements", "out_elements"), "Int64")
    return table.astype(numbers)[TABLES["collectives"].names]


def _name(*texts: str | None) -> str | None:
    return next((found for text in texts if text and (found := naming.collective_name(text))), None)


def _inherited(op: Ints, parent: Ints, wanted: Mask, values: Ints) -> Ints:
    """The value of each operator itself, or of its nearest ancestor that is wanted; -1 for none."""
    return take(values, take(nearest(parent, wanted), op))
