"""How evenly all-to-alls share their elements out, by what PyTorch says of their parts ("In split size").

An all-to-all of equal parts has no such list. Neither has one of more ranks than PyTorch lists.
"""

from typing import Any

import msgspec
import numpy as np
import pandas as pd

from steptrace.analysis.common.registry import table_part
from steptrace.analysis.communication import gpu_collectives
from steptrace.documents.subjects.expert_loads import ExpertLoad
from steptrace.documents.table import frame_of
from steptrace.intervals import Ints
from steptrace.trace.columns import row_numbers
from steptrace.trace.decode import LARGEST
from steptrace.trace.model import Trace, once

_SPLIT = msgspec.json.Decoder(list[int])
_FEWEST_RANKS = 2


@table_part("expert_loads")
@once
def expert_loads(trace: Trace) -> pd.DataFrame:
    """The elements sent to each rank of each process group (table `expert_loads`), by group and rank.

    If the trace has steps, all-to-alls outside them do not count.
    """
    times = gpu_collectives(trace)
    wanted = times[(times["collective"] == "all_to_all").to_numpy()]
    if len(trace.steps):
        wanted = wanted[wanted["step"].notna().to_numpy()]
    split_of = trace.collectives.set_index("kernel")["in_split"]
    loads: dict[tuple[str | None, int], tuple[int, Ints]] = {}
    for kernel, group in zip(row_numbers(wanted["kernel"]).tolist(), wanted["group"], strict=True):
        parts = _parts(split_of.get(kernel))
        if parts is None:
            continue
        name = None if pd.isna(group) else str(group)
        calls, total = loads.get((name, len(parts)), (0, np.zeros(len(parts), dtype=np.int64)))
        loads[name, len(parts)] = (calls + 1, total + parts)
    rows = [
        {
            "group": name,
            "place": place,
            "calls": calls,
            "elements": int(elements),
            "over_mean": float(elements / total.mean()),
        }
        for (name, _), (calls, total) in sorted(loads.items(), key=lambda item: (str(item[0][0]), item[0][1]))
        if total.sum()
        for place, elements in enumerate(total)
    ]
    return frame_of(ExpertLoad, rows)


def _parts(written: Any) -> Ints | None:
    """The elements for each rank; None where they are not all known."""
    if not isinstance(written, str):
        return None
    try:
        parts = _SPLIT.decode(written)
    except msgspec.DecodeError:
        return None
    if len(parts) < _FEWEST_RANKS or not all(0 <= part < LARGEST for part in parts):
        return None
    return np.array(parts, dtype=np.int64)
