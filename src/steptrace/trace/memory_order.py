"""The order of allocations and releases, also of those that the trace gives the same time.

Older profilers round to a microsecond, in which an allocator does much. Its counter tells the order then: what an event
left is what the next one found.
"""

from collections import Counter, defaultdict

import numpy as np

from steptrace.intervals import Ints
from steptrace.trace.columns import Columns, Mask
from steptrace.trace.events import MISSING


def memory_order(rows: Columns) -> Ints:
    """Positions of the rows by time, those of one device and instant in the order that the allocator's counter tells.

    Where it does not tell (no counter, a gap, or a round that fits anywhere), they stand as in the file.
    """
    order = np.lexsort((rows["ts"], rows["device_id"], rows["device_type"]))
    kind, device, ts = (rows[name][order] for name in ("device_type", "device_id", "ts"))
    same_device = (kind[1:] == kind[:-1]) & (device[1:] == device[:-1])
    tied = same_device & (ts[1:] == ts[:-1])
    edges = np.diff(np.concatenate([[False], tied, [False]]).astype(np.int8))
    for first, last in zip(np.flatnonzero(edges == 1), np.flatnonzero(edges == -1), strict=True):
        group = order[first : last + 1]
        if (rows["allocated"][group] == MISSING).any():
            continue
        before, after = _levels(rows, group)
        if first > 0 and same_device[first - 1]:
            start: int | None = int(rows["allocated"][order[first - 1]])
        else:
            start = _first_level(rows, order, (same_device, tied), int(first))
        order[first : last + 1] = group[_walk(before, after, start)]
    return np.asarray(order[np.argsort(rows["ts"][order], kind="stable")], dtype=np.int64)


def _first_level(rows: Columns, order: Ints, same: tuple[Mask, Mask], first: int) -> int | None:
    """What the counter was before the instant at `first`, a device's first one; None if nothing tells.

    A round of events ends where it began, and that is what the next instant found; so rounds that follow each other all
    begin at a level that they share.
    """
    same_device, tied = same
    shared: list[int] | None = None
    while True:
        last = first
        while last < len(tied) and tied[last]:
            last += 1
        before, after = _levels(rows, order[first : last + 1])
        start = _start(before, after)
        if start is not None:
            return start
        shared = before if shared is None else [level for level in shared if level in before]
        if last == len(same_device) or not same_device[last]:
            return shared[0] if shared else None
        first = last + 1


def _levels(rows: Columns, group: Ints) -> tuple[list[int], list[int]]:
    """What the counter was before each event and after it."""
    after = rows["allocated"][group]
    return (after - rows["size"][group]).tolist(), after.tolist()


def _start(before: list[int], after: list[int]) -> int | None:
    """The level that is found once more than it is left, and so was there first; None if all events are a round."""
    left, found = Counter(after), Counter(before)
    return next((value for value in before if found[value] > left[value]), None)


def _walk(before: list[int], after: list[int], start: int | None) -> list[int]:
    """Positions such that each event finds what the one before it left, from `start` on if there is such an event.

    That is a walk over every edge of a graph whose nodes are levels (Hierholzer, Mathematische Annalen 6, 1873). Events
    that it does not reach follow as they stand.
    """
    leaving: defaultdict[int, list[int]] = defaultdict(list)
    for position in reversed(range(len(before))):
        leaving[before[position]].append(position)
    if start is None or start not in leaving:
        own = _start(before, after)
        start = before[0] if own is None else own
    walk: list[int] = []
    path: list[tuple[int, int | None]] = [(start, None)]
    while path:
        at, event = path[-1]
        if leaving[at]:
            following = leaving[at].pop()
            path.append((after[following], following))
        else:
            path.pop()
            walk += [] if event is None else [event]
    walk.reverse()
    return [*walk, *(position for position in range(len(before)) if position not in set(walk))]
