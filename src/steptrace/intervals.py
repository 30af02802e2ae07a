"""Arithmetic on sets of half-open spans `[start, end)` of int64 nanoseconds.

A set of spans is an int64 array of shape `(n, 2)`. `union` brings any set into *normal form*: sorted, disjoint,
non-touching, without empty spans. The other functions take normal-form sets and return them, so that their measures
add up exactly: `measure(a) == measure(intersect(a, b)) + measure(subtract(a, b))`.
"""

from bisect import bisect_left, bisect_right

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steptrace.compiled import compiled

Spans = NDArray[np.int64]
Ints = NDArray[np.int64]


def spans(starts: ArrayLike, ends: ArrayLike) -> Spans:
    """The `(n, 2)` array of the spans from `starts` to `ends`, in the order given."""
    return np.stack([np.asarray(starts, dtype=np.int64), np.asarray(ends, dtype=np.int64)], axis=1).reshape(-1, 2)


def empty() -> Spans:
    """The set without spans."""
    return np.empty((0, 2), dtype=np.int64)


def union(*sets: Spans) -> Spans:
    """The normal form of the union of any sets, overlapping, unsorted or with empty spans as they may be."""
    # A trace's events come in order of start, or nearly: what need not be filtered or sorted is not copied either.
    all_spans = sets[0] if len(sets) == 1 else np.concatenate([empty(), *sets])
    if not (long := all_spans[:, 1] > all_spans[:, 0]).all():
        all_spans = all_spans[long]
    if len(all_spans) == 0:
        return empty()
    if (all_spans[1:, 0] < all_spans[:-1, 0]).any():
        all_spans = all_spans[np.argsort(all_spans[:, 0], kind="stable")]
    reach = np.maximum.accumulate(all_spans[:, 1])
    first = np.ones(len(all_spans), dtype=bool)
    first[1:] = all_spans[1:, 0] > reach[:-1]
    last = np.append(np.flatnonzero(first)[1:] - 1, len(all_spans) - 1)
    return spans(all_spans[first, 0], reach[last])


def distinct(values: Ints) -> Ints:
    """The distinct values, in order. `numpy.unique` hashes them, and takes a hundred times as long for some times."""
    ordered = np.sort(values, axis=None)
    return ordered[np.append(True, ordered[1:] != ordered[:-1])] if len(ordered) else ordered


def measure(a: Spans) -> int:
    """The total length of a normal-form set, in ns."""
    return int((a[:, 1] - a[:, 0]).sum())


def intersect(a: Spans, b: Spans) -> Spans:
    """What lies in both normal-form sets."""
    if len(a) == 0 or len(b) == 0:
        return empty()
    # Each span of `a` meets a contiguous run of spans of `b`; lay the runs out one after the other.
    first = np.searchsorted(b[:, 1], a[:, 0], side="right")
    stop = np.searchsorted(b[:, 0], a[:, 1], side="left")
    counts = np.maximum(stop - first, 0)
    owner = np.repeat(np.arange(len(a)), counts)
    offset = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
    partner = first[owner] + offset
    return spans(np.maximum(a[owner, 0], b[partner, 0]), np.minimum(a[owner, 1], b[partner, 1]))


def complement(a: Spans, start: int, end: int) -> Spans:
    """The parts of `[start, end)` outside the normal-form set `a`."""
    inside = clip(a, start, end)
    edges_from = np.concatenate([[start], inside[:, 1]])
    edges_to = np.concatenate([inside[:, 0], [end]])
    holes = spans(edges_from, edges_to)
    return holes[holes[:, 1] > holes[:, 0]]


def subtract(a: Spans, b: Spans) -> Spans:
    """The parts of the normal-form set `a` outside the normal-form set `b`."""
    if len(a) == 0 or len(b) == 0:
        return a
    return intersect(a, complement(b, int(a[0, 0]), int(a[-1, 1])))


def contains(a: Spans, times: Ints) -> NDArray[np.bool_]:
    """A mask of the instants that lie in the normal-form set."""
    place = np.searchsorted(a[:, 0], times, side="right")
    ends = np.append(np.iinfo(np.int64).min, a[:, 1])
    inside: NDArray[np.bool_] = times < ends[place]
    return inside


def clip(a: Spans, start: int, end: int) -> Spans:
    """The parts of the normal-form set `a` within `[start, end)`."""
    if end <= start or len(a) == 0:
        return empty()
    # Bisected, not `numpy.searchsorted`, which copies a column: a long set is often clipped to each of many steps.
    first, stop = bisect_right(a[:, 1], start), bisect_left(a[:, 0], end)
    clipped: Spans = np.clip(a[first : max(stop, first)], start, end)
    return clipped


def measure_within(a: Spans, starts: ArrayLike, ends: ArrayLike) -> Ints:
    """How much of the normal-form set `a` lies in each window `[starts[i], ends[i])`; the windows may overlap.

    Returns an int64 array of ns, one per window; an inverted window measures 0.
    """
    lower: Ints = np.asarray(starts, dtype=np.int64)
    upper: Ints = np.maximum(np.asarray(ends, dtype=np.int64), lower)
    return _measure_before(a, upper) - _measure_before(a, lower)


def _measure_before(a: Spans, times: Ints) -> Ints:
    """How much of `a` lies before each time."""
    if len(a) == 0:
        return np.zeros(times.shape, dtype=np.int64)
    total = np.concatenate([[0], np.cumsum(a[:, 1] - a[:, 0])])
    begun = np.searchsorted(a[:, 0], times, side="left")
    last = np.maximum(begun - 1, 0)
    overhang = np.where(begun > 0, np.maximum(a[last, 1] - times, 0), 0)
    result: Ints = (total[begun] - overhang).astype(np.int64)
    return result


def measure_by_group(group: Ints, starts: Ints, ends: Ints, count: int) -> Ints:
    """The length of the union of each group's spans, in whatever order they come.

    Args:
        group: the group of each span, 0 to `count` - 1.
        starts, ends: the spans.
        count: how many groups there are; one without spans measures 0.

    Returns:
        int64 array of ns, one per group.
    """
    if len(group) == 0:
        return np.zeros(count, dtype=np.int64)
    merged, owner = union_by_group(group, starts, ends)
    measured = np.zeros(count, dtype=np.int64)
    np.add.at(measured, owner, merged[:, 1] - merged[:, 0])
    return measured


def union_by_group(group: Ints, starts: Ints, ends: Ints) -> tuple[Spans, Ints]:
    """The union of each group's spans in normal form, one group after the other, and the group of each span."""
    order = np.lexsort((starts, group))
    group = group[order]
    starts = starts[order]
    ends = ends[order]
    long = ends > starts
    if not long.all():
        group = group[long]
        starts = starts[long]
        ends = ends[long]
    if len(group) == 0:
        return empty(), group
    base = int(starts.min())
    width = int(ends.max()) - base + 1
    # Shift each group into its own range of time: then no span reaches into the next group's. An int64 has room for so
    # many groups at a time.
    first = np.append(True, group[1:] != group[:-1])
    number = np.cumsum(first) - 1
    at_once = max((1 << 62) // width, 1)
    parts: list[Spans] = []
    owners: list[Ints] = []
    own_groups = group[first]
    for low in range(0, len(own_groups), at_once):
        begin, stop = np.searchsorted(number, [low, low + at_once])
        offset = (number[begin:stop] - low) * width - base
        merged = union(spans(starts[begin:stop] + offset, ends[begin:stop] + offset))
        place = merged[:, 0] // width
        parts.append(merged - (place * width - base)[:, None])
        owners.append(own_groups[low + place])
    return np.concatenate(parts), np.concatenate(owners)


def enclosing(group: Ints, starts: Ints, ends: Ints, query_group: Ints, times: Ints) -> Ints:
    """The innermost span of a nesting (a call stack) around each queried instant.

    Args:
        group, starts, ends: the nesting's spans, sorted by `(group, start, -end)`; only spans of one group nest.
        query_group, times: the instants.

    Returns:
        int64 indices into the nesting, -1 where no span of the group holds the instant. Of partly overlapping spans
        (Kineto rounds starts and lengths apart) the later start counts as the inner one.
    """
    innermost = np.empty(len(times), dtype=np.int64)
    arguments = (group, starts, ends, query_group, times)
    compiled.enclosing(*(np.ascontiguousarray(a, dtype=np.int64) for a in arguments), innermost)
    return innermost


def nesting_parents(group: Ints, starts: Ints, ends: Ints) -> Ints:
    """The parent of each span of a nesting sorted by `(group, start, -end)`: the latest earlier one still open.

    Returns int64 indices, -1 for a span without parent.
    """
    parent = np.empty(len(starts), dtype=np.int64)
    compiled.nesting_parents(*(np.ascontiguousarray(a, dtype=np.int64) for a in (group, starts, ends)), parent)
    return parent
