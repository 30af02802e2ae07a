"""Allocations of one instant come in the order in which the allocator's counter can have taken its values."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from steptrace.trace.events import MISSING
from steptrace.trace.tables import memory_order


def rows_of(events: list[tuple[int, int, int]], device: int = 0) -> dict[str, np.ndarray]:
    """Rows of (ts, size, allocated)."""
    columns = np.array(events, dtype=np.int64).reshape(-1, 3)
    fixed = {"device_type": np.ones(len(columns), np.int64), "device_id": np.full(len(columns), device, np.int64)}
    return {"ts": columns[:, 0], "size": columns[:, 1], "allocated": columns[:, 2], **fixed}


def is_a_walk(rows: dict[str, np.ndarray], order: np.ndarray) -> bool:
    level, size = rows["allocated"][order], rows["size"][order]
    return bool((level[:-1] == level[1:] - size[1:]).all())


@given(
    st.integers(0, 5),
    st.lists(st.tuples(st.integers(0, 3), st.integers(-3, 3).filter(bool)), min_size=1, max_size=14),
    st.randoms(use_true_random=False),
)
@settings(max_examples=300, deadline=None)
def test_the_counter_is_walked_whatever_the_order_in_the_file(start, changes, random):
    level, events = 100 + start, []
    for ts, size in sorted(changes, key=lambda change: change[0]):
        level += size
        events.append((ts, size, level))
    random.shuffle(events)
    rows = rows_of(events)
    order = memory_order(rows)
    assert sorted(order.tolist()) == list(range(len(events)))
    assert (np.diff(rows["ts"][order]) >= 0).all()
    assert is_a_walk(rows, order)


def test_a_round_of_one_instant_is_entered_where_the_next_event_found_it():
    # 2 -> 1 -> 2 or 1 -> 2 -> 1: an event that found 2 comes after.
    rows = rows_of([(1, 1, 2), (1, -1, 1), (5, 3, 5)])
    assert memory_order(rows).tolist() == [1, 0, 2]


def test_rounds_that_follow_each_other_share_the_level_they_begin_with():
    # 0: 100 101 102 100; 1: 100 99 98 100. Each round by itself could begin anywhere.
    rows = rows_of([(0, 1, 102), (0, 1, 101), (0, -2, 100), (1, -1, 98), (1, -1, 99), (1, 2, 100)])
    order = memory_order(rows)
    assert is_a_walk(rows, order)
    assert rows["allocated"][order].tolist() == [101, 102, 100, 99, 98, 100]


def test_without_anything_that_tells_the_file_does():
    assert memory_order(rows_of([(1, -1, 1), (1, 1, 2)])).tolist() == [0, 1]
    assert memory_order(rows_of([(1, 1, 2), (1, -1, 1)])).tolist() == [0, 1]
    assert memory_order(rows_of([(1, 5, MISSING), (1, -5, MISSING), (0, 1, MISSING)])).tolist() == [2, 0, 1]


def test_a_gap_in_the_counter_loses_no_event():
    rows = rows_of([(1, 1, 50), (1, 1, 10), (1, 1, 11)])
    assert sorted(memory_order(rows).tolist()) == [0, 1, 2]


def test_devices_have_counters_of_their_own():
    first, second = rows_of([(1, 1, 2), (1, 1, 1)]), rows_of([(1, 1, 8), (1, 1, 7)], device=1)
    rows = {name: np.concatenate([first[name], second[name]]) for name in first}
    assert memory_order(rows).tolist() == [1, 0, 3, 2]
