"""Arithmetic on spans against sets of integers."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from steptrace import intervals

_SPANS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9)), max_size=12).map(
    lambda pairs: intervals.spans([s for s, _ in pairs], [s + d for s, d in pairs])
)


def _points(spans: intervals.Spans) -> set[int]:
    return {point for start, end in spans for point in range(start, end)}


@given(_SPANS)
def test_union_is_normal(spans: intervals.Spans) -> None:
    united = intervals.union(spans)
    assert _points(united) == _points(spans)
    assert (united[:, 1] > united[:, 0]).all()
    assert (united[1:, 0] > united[:-1, 1]).all()
    assert intervals.measure(united) == len(_points(spans))


@given(_SPANS, _SPANS)
def test_intersection_and_difference(a: intervals.Spans, b: intervals.Spans) -> None:
    a, b = intervals.union(a), intervals.union(b)
    assert _points(intervals.intersect(a, b)) == _points(a) & _points(b)
    assert _points(intervals.subtract(a, b)) == _points(a) - _points(b)
    assert intervals.measure(a) == intervals.measure(intervals.intersect(a, b)) + intervals.measure(
        intervals.subtract(a, b)
    )


@given(_SPANS, st.integers(-3, 45), st.integers(-3, 45))
def test_clip_complement_and_windows(a: intervals.Spans, start: int, end: int) -> None:
    a = intervals.union(a)
    inside = _points(a) & set(range(start, end))
    assert _points(intervals.clip(a, start, end)) == inside
    assert intervals.measure_within(a, [start], [end]).tolist() == [len(inside)]
    if start <= end:
        assert _points(intervals.complement(a, start, end)) == set(range(start, end)) - _points(a)


_NESTING = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(0, 15)), max_size=25)


@given(_NESTING, st.lists(st.tuples(st.integers(0, 3), st.integers(-1, 50)), max_size=10))
def test_enclosing_is_the_latest_open_start(rows: list[tuple[int, int, int]], queries: list[tuple[int, int]]) -> None:
    rows.sort(key=lambda row: (row[0], row[1], -row[2]))
    group, start, length = (np.array([row[i] for row in rows], dtype=np.int64) for i in range(3))
    end = start + length
    parents = intervals.nesting_parents(group, start, end)
    for row, parent in enumerate(parents):
        open_ = [j for j in range(row) if group[j] == group[row] and end[j] > start[row]]
        assert parent == (open_[-1] if open_ else -1)
    query_group, times = (np.array([query[i] for query in queries], dtype=np.int64) for i in range(2))
    enclosing = intervals.enclosing(group, start, end, query_group, times)
    for query, row in enumerate(enclosing):
        open_ = [j for j in range(len(rows)) if group[j] == query_group[query] and start[j] <= times[query] < end[j]]
        assert row == (open_[-1] if open_ else -1)


_GROUPED = st.lists(st.tuples(st.integers(0, 4), st.integers(-20, 20), st.integers(0, 9)), max_size=30)


@given(_GROUPED, st.sampled_from([1, 10**14, 1 << 58]))
def test_unions_by_group_at_any_scale(rows: list[tuple[int, int, int]], scale: int) -> None:
    """Spans far apart in many groups stay exact: no product of groups and time is larger than an int64."""
    group = np.array([g for g, *_ in rows], dtype=np.int64)
    starts = np.array([a for _, a, _ in rows], dtype=np.int64)
    ends = starts + np.array([n for *_, n in rows], dtype=np.int64)
    starts, ends = starts * (scale // 64 or 1), ends * (scale // 64 or 1)
    merged, owner = intervals.union_by_group(group, starts, ends)
    for number in range(5):
        expected = intervals.union(intervals.spans(starts, ends)[group == number])
        assert merged[owner == number].tolist() == expected.tolist()
        assert intervals.measure_by_group(group, starts, ends, 5)[number] == intervals.measure(expected)
    assert owner.tolist() == sorted(owner.tolist())


def test_contains() -> None:
    spans = intervals.spans([0, 20], [10, 30])
    assert intervals.contains(spans, np.array([-1, 0, 9, 10, 19, 20, 29, 30])).tolist() == [
        *(False, True, True, False),
        *(False, True, True, False),
    ]
    assert not intervals.contains(intervals.empty(), np.array([0, 5])).any()
