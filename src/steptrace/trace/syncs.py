"""Finds the syncs among a trace's host calls.

A sync is a host operation that returns only once queued GPU work is complete: a waiting call, a copy to
pageable host memory, or a synchronous copy. A copy followed directly on its thread by a stream sync is one
sync with it. A synchronous copy counts if its GPU record or its argument `kind` (AMD's traces: 1 to the
device, 2 to the host) gives a copy between host and device, or if it has no record. Waits of one stream for another,
queries, records and device-to-device copies are not syncs.
"""

from typing import Any

import numpy as np
import pandas as pd

from steptrace.trace import names as naming
from steptrace.trace.columns import Ints, Mask, map_names, references, row_numbers

#: `hipMemcpyHostToDevice` and `hipMemcpyDeviceToHost`, as in CUDA.
_ACROSS = (1, 2)
_TO_PAGEABLE = "-> Pageable)"


def find_syncs(
    launches: pd.DataFrame, copy_kinds: Ints, kernels: pd.DataFrame, steps: pd.DataFrame, threads: pd.DataFrame
) -> pd.DataFrame:
    """The `syncs` table of a trace, in order of time; `launches` must be in order of thread and time.

    `copy_kinds` is the argument `kind` of each launch.
    """
    direction, to_pageable = _copies(launches, kernels)
    name = launches["name"]
    waits = map_names(name, naming.WAITS.__contains__)
    stream_waits = map_names(name, naming.STREAM_WAITS.__contains__)
    queued_copy = map_names(name, naming.is_async_copy)
    across = (direction == "HtoD") | (direction == "DtoH")

    thread = launches["thread"].to_numpy()
    follows = np.zeros(len(launches), dtype=bool)  # whether the next call waits for the stream, on the same thread
    follows[:-1] = stream_waits[1:] & (thread[1:] == thread[:-1])
    merged = queued_copy & across & follows
    absorbed = np.zeros(len(launches), dtype=bool)
    absorbed[1:] = merged[:-1]

    copies = merged | (queued_copy & to_pageable)
    sync_copies = map_names(name, naming.is_sync_copy) & (across | (direction == "") | np.isin(copy_kinds, _ACROSS))
    start = launches["ts"].to_numpy()
    first = np.flatnonzero(copies | sync_copies | (waits & ~absorbed))
    first = first[np.argsort(start[first], kind="stable")]
    last = first + merged[first]

    length = launches["dur"].to_numpy()
    by_direction = np.where(direction[first] == "DtoH", "d2h_copy", "h2d_copy")
    kind = np.where(copies[first], by_direction, launches["name"].to_numpy(dtype=object)[first])
    step = row_numbers(launches["step"])[first]
    return pd.DataFrame(
        {
            "ts": start[first],
            "dur": start[last] + length[last] - start[first],
            "thread": thread[first],
            "kind": pd.Series(kind, dtype=object),
            "blocked_ns": length[first] + np.where(merged[first], length[last], 0),
            "launch": first.astype(np.int64),
            "op": references(row_numbers(launches["op"])[first]),
            "step": references(step),
            "counted": threads["training"].to_numpy()[thread[first]] & ((step >= 0) | (len(steps) == 0)),
        }
    )


def _copies(launches: pd.DataFrame, kernels: pd.DataFrame) -> tuple[Any, Mask]:
    """For each call the direction of its copy ("" without one), and whether it went to pageable memory."""
    direction = np.full(len(launches), "", dtype=object)
    to_pageable = np.zeros(len(launches), dtype=bool)
    of_calls = (kernels["category"] == "memcpy").to_numpy() & kernels["launch"].notna().to_numpy()
    copies = kernels.loc[of_calls, ["launch", "name"]]
    owner: Ints = copies["launch"].to_numpy(dtype=np.int64)
    recorded = copies["name"].to_numpy(dtype=object)
    direction[owner] = [naming.copy_direction(name) or "?" for name in recorded]
    to_pageable[owner] = [name.endswith(_TO_PAGEABLE) for name in recorded]
    return direction, to_pageable
