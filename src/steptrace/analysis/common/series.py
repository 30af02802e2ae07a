"""Piecewise constant series in time: made from changes, summarised with each value's duration as weight."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from steptrace.intervals import Ints


def running_sum(times: Ints, changes: NDArray[Any]) -> tuple[Ints, NDArray[Any]]:
    """The instants at which a sum changes, sorted and each once, and the sum from each on.

    Args:
        times: of the changes, int64 ns, in any order.
        changes: added at these times, of the same length; changes at the same instant are one.
    """
    instants, place = np.unique(times, return_inverse=True)
    added = np.zeros(len(instants), dtype=changes.dtype)
    np.add.at(added, place, changes)
    return instants.astype(np.int64), np.cumsum(added)


def time_held(instants: Ints) -> Ints:
    """The duration of each value of a series, ns; 0 for the last one."""
    return np.append(np.diff(instants), 0).astype(np.int64)


def quantiles(values: NDArray[Any], weights: Ints, group: Ints, share: float) -> NDArray[Any]:
    """The smallest value of each group that is not exceeded for a share of the group's weight.

    Args:
        values: the values; at least one.
        weights: of the same length, none negative.
        group: the number of each value's group: sorted, from 0, without gaps.
        share: 0 to 1.
    """
    first = np.flatnonzero(np.append(True, group[1:] != group[:-1]))
    total = np.add.reduceat(weights, first)
    order = np.lexsort((values, group))
    reached = np.cumsum(weights[order])
    reached -= np.repeat(np.append(0, np.cumsum(total)[:-1]), np.diff(np.append(first, len(group))))
    place = np.where(reached >= share * total[group], np.arange(len(group)), len(group) - 1)
    result: NDArray[Any] = values[order][np.minimum.reduceat(place, first)]
    return result
