"""The peak memory of steps with compiled code."""

import pytest

from steptrace.documents.compiled import FIRST_CALL
from steptrace.estimate.compiled import _most_at_once

FORWARD, BACKWARD = FIRST_CALL, FIRST_CALL - 1
OTHER, OTHER_BACKWARD = FIRST_CALL - 2, FIRST_CALL - 3


@pytest.mark.parametrize(
    ("queue", "most"),
    [
        ([FORWARD, BACKWARD], 10),
        ([FORWARD, BACKWARD] * 5, 10),  # gradient accumulation: one call keeps something at a time
        ([FORWARD, FORWARD, BACKWARD, BACKWARD] * 2, 20),
        ([FORWARD, OTHER, OTHER_BACKWARD, BACKWARD], 13),
        ([FORWARD] * 4, 10),  # without a backward pass nothing is kept after a call
        ([0, 1, -1], 0),
    ],
)
def test_calls_save_memory_while_they_keep_something(queue: list[int], most: int) -> None:
    assert _most_at_once(queue, {FORWARD: 10, OTHER: 3}) == most
