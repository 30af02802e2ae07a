"""When a stream's queue is full."""

import pytest

from builders import TraceBuilder
from steptrace.analysis.streams import queues
from steptrace.limits import QUEUE_CAPACITY

US = 1000


@pytest.mark.parametrize("missing", [0, 1])
def test_a_queue_is_full_while_it_holds_as_many_launches_as_a_stream_takes(missing: int) -> None:
    builder = TraceBuilder()
    launches = QUEUE_CAPACITY - missing
    first_start = launches * US + 500
    for k in range(launches):
        builder.kernel(k * US, first_start + k * US, US)
    last_launch = (launches - 1) * US
    (full_ns,) = queues(builder.trace())["full_ns"]
    assert full_ns == (0 if missing else first_start - last_launch)
