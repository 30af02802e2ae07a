"""How evenly all-to-alls share their elements out."""

from typing import Any

import pytest

from builders import TraceBuilder
from steptrace.analysis.expert_loads import expert_loads
from steptrace.trace.model import Trace

STEP = 1_000_000


def _exchanges(*splits: Any, name: str = "all_to_allv", group: str = "ep", outside: bool = False) -> Trace:
    """Two steps, each with one collective for each of these parts; `outside`: one more after the steps."""
    builder = TraceBuilder()
    for step in range(2 + outside):
        if step < 2:
            builder.step(step, step * STEP, STEP)
        for place, split in enumerate(splits):
            at = step * STEP + place * 50_000
            args = {"Collective name": name, "Process Group Name": group, "In msg nelems": 10, "dtype": "Float"}
            args |= {"In split size": split}
            builder.kernel(at, at + 5_000, 30_000, "ncclDevKernel_SendRecv(x)", **args)
    return builder.trace()


def test_elements_are_summed_by_receiving_rank() -> None:
    trace = _exchanges("[6, 1, 1]", "[3, 0, 1]", outside=True)
    rows = [(row.group, row.place, row.calls, row.elements) for row in expert_loads(trace).itertuples()]
    assert rows == [("ep", 0, 4, 18), ("ep", 1, 4, 2), ("ep", 2, 4, 4)]
    assert expert_loads(trace)["over_mean"].tolist() == pytest.approx([18 / 8, 2 / 8, 4 / 8])


def test_a_list_is_read_as_well_as_its_text() -> None:
    assert expert_loads(_exchanges([6, 2]))["elements"].tolist() == [12, 4]


@pytest.mark.parametrize("split", ["[]", "", "[1, 2, ..., 3]", "[5]", "[-1, 2]", "[0, 0]", None, 7, {"a": 1}])
def test_parts_that_are_not_known_give_no_rows(split: Any) -> None:
    assert len(expert_loads(_exchanges(split))) == 0


def test_other_collectives_have_no_experts() -> None:
    assert len(expert_loads(_exchanges("[6, 2]", name="allreduce"))) == 0
