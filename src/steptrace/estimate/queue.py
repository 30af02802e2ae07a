"""A step as the queue that the host fills and the GPU empties: kernels, syncs, collectives, launches of graphs.

The host launches one item after another; a kernel starts when it is launched and the one before it has ended; a sync
lets the host wait for all kernels launched before it, at its place. Collectives run beside the kernels from where they
are launched, and a join lets the kernels behind it wait for them. All times are vectors over the draws.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from steptrace.estimate.times import COUNT, Draws
from steptrace.estimate.work import Kernel

#: Items between two syncs that are simulated one by one; of more, neighbours are taken together.
_MOST_ITEMS: Final = 4000
_AT_ONCE: Final = 1000
#: Different rows that are remembered.
_MOST_KNOWN: Final = 1000


@dataclass(frozen=True)
class Sync:
    """The host waits here for all kernels launched before."""


@dataclass(frozen=True, kw_only=True)
class Collective:
    """A collective between GPUs, on a stream of its own.

    Attributes:
        operation: `all_reduce`, `all_gather`, `reduce_scatter`, `all_to_all`, `broadcast` or `other`.
        bytes: of the larger one of input and output of a rank.
        after_kernels: whether it sends what kernels before it compute. One that does not, such as the parameters that
            FSDP gathers ahead, starts as soon as it is launched.
    """

    operation: str
    bytes: float
    after_kernels: bool = True


@dataclass(frozen=True)
class Join:
    """Kernels launched from here on wait for all collectives launched before."""


@dataclass(frozen=True, kw_only=True)
class GraphLaunch:
    """Kernels that the host launches at once, as one CUDA graph."""

    kernels: tuple[Kernel, ...]


Item = Kernel | Sync | Collective | Join | GraphLaunch


@dataclass(frozen=True)
class Timeline:
    """A step in each draw, in seconds.

    Attributes:
        step: from one step's beginning to the next one's.
        gpu: its kernels.
        host: the host's launches.
        communication: its collectives.
        exposed: kernels waiting for collectives.
    """

    step: Draws
    gpu: Draws
    host: Draws
    communication: Draws
    exposed: Draws


@dataclass
class _State:
    """When the host, the kernels and the collectives so far are done."""

    host: Draws = field(default_factory=lambda: np.zeros(COUNT))
    kernels: Draws = field(default_factory=lambda: np.zeros(COUNT))
    collectives: Draws = field(default_factory=lambda: np.zeros(COUNT))
    exposed: Draws = field(default_factory=lambda: np.zeros(COUNT))


def simulate(
    order: Sequence[Item | int], seconds: Draws, launches: Draws, per_launch: Draws, collectives: Sequence[Draws] = ()
) -> Timeline:
    """Run one step after another as long as it takes to say what a step takes.

    Args:
        order: the queue: positions of kernels in `seconds`, and the other items as they are.
        seconds: of each kernel in each draw [kernels, draws].
        launches: of each kernel.
        per_launch: seconds of the host for one launch, in each draw.
        collectives: seconds of each collective of the queue, in their order.
    """
    places = [item for item in order if isinstance(item, int)]
    counts = np.bincount(np.array(places, dtype=np.int64), minlength=len(seconds)) if places else np.zeros(len(seconds))
    gpu = np.asarray(counts @ seconds) if len(seconds) else np.zeros(COUNT)
    graphs = sum(isinstance(item, GraphLaunch) for item in order)
    host = (float(counts @ launches) + len(collectives) + graphs) * per_launch
    communication = np.sum(collectives, axis=0) if len(collectives) else np.zeros(COUNT)
    has_syncs = any(isinstance(item, Sync) for item in order)
    if not has_syncs and not len(collectives):
        return Timeline(np.maximum(gpu, host), gpu, host, communication, np.zeros(COUNT))
    numbered, stretches = _numbered(order), _Stretches(seconds, launches, per_launch)
    if has_syncs:  # behind the last sync nothing is under way: the step begins and ends there
        last = max(place for place, (item, _) in enumerate(numbered) if isinstance(item, Sync))
        state = _State()
        _run(numbered[last + 1 :] + numbered[: last + 1], state, stretches, per_launch, collectives)
        return Timeline(state.host, gpu, host, communication, state.exposed)
    state = _State()
    _run(numbered, state, stretches, per_launch, collectives)
    _run(numbered, state, stretches, per_launch, collectives)  # as the host runs ahead, a second one is another
    second, waited = _end(state), state.exposed.copy()
    _run(numbered, state, stretches, per_launch, collectives)
    step = np.maximum(_end(state) - second, np.maximum(gpu, host))
    return Timeline(step, gpu, host, communication, state.exposed - waited)


def _end(state: _State) -> Draws:
    return np.maximum(state.host, np.maximum(state.kernels, state.collectives))


_Numbered = list[tuple[Item | int, int]]


def _numbered(order: Sequence[Item | int]) -> _Numbered:
    """Each item with the number of collectives before it."""
    before, result = 0, []
    for item in order:
        result.append((item, before))
        before += isinstance(item, Collective)
    return result


def _run(
    order: _Numbered,
    state: _State,
    stretches: "_Stretches",
    per_launch: Draws,
    collectives: Sequence[Draws],
) -> None:
    """Move the state through a queue."""
    for places, (item, number) in _rows(order):
        if places:
            stretches.run(places, state)
        if isinstance(item, Sync):
            state.host = np.maximum(state.host, state.kernels)
        elif isinstance(item, Collective):
            state.host = state.host + per_launch
            start = np.maximum(state.host, state.collectives)
            start = np.maximum(start, state.kernels) if item.after_kernels else start
            state.collectives = start + collectives[number]
        elif isinstance(item, GraphLaunch):
            state.host = state.host + per_launch
        elif isinstance(item, Join):
            waits = np.maximum(state.collectives - state.kernels, 0.0)
            state.exposed = state.exposed + waits
            state.kernels = state.kernels + waits


def _rows(order: _Numbered) -> Iterator[tuple[list[int], tuple[Item | None, int]]]:
    """Kernels in a row, and the item of another kind that ends the row."""
    places: list[int] = []
    for item, number in order:
        if isinstance(item, int):
            places.append(item)
        else:
            yield places, (item, number)
            places = []
    if places:
        yield places, (None, 0)


class _Stretches:
    """Rows of kernels: what each adds to the queue does not depend on what ran before, so equal rows are computed once.

    The last kernel of a row ends at the latest of: what ran before and then all of them; for each of them its launch,
    and then it and all behind it.
    """

    def __init__(self, seconds: Draws, launches: Draws, per_launch: Draws) -> None:
        self._seconds, self._launches, self._per_launch = seconds, launches, per_launch
        self._known: dict[tuple[int, ...], tuple[Draws, Draws, float]] = {}

    def run(self, places: Sequence[int], state: _State) -> None:
        """Launch and run these kernels."""
        key = tuple(places)
        if key not in self._known:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[key] = self._row(np.array(places))
        total, latest, launched = self._known[key]
        state.kernels = state.host + np.maximum(state.kernels - state.host, latest) + total
        state.host = state.host + launched * self._per_launch

    def _row(self, places: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> tuple[Draws, Draws, float]:
        """Seconds of the kernels together; the latest launch less what ran before it in the row; launches."""
        launches = self._launches[places]
        group = max(1, -(-len(places) // _MOST_ITEMS))
        launched = np.cumsum(launches)
        total, latest = np.zeros(COUNT), np.full(COUNT, -np.inf)
        for start in range(0, len(places), _AT_ONCE * group):
            block = slice(start, start + _AT_ONCE * group)
            taken = self._seconds[places[block]]
            first = launched[block] - launches[block] + (launches[block] > 0)
            if group > 1:
                taken = np.add.reduceat(taken, np.arange(0, len(taken), group), axis=0)
                first = first[::group]
            ends = total + np.cumsum(taken, axis=0)
            before = ends - taken
            latest = np.maximum(latest, np.max(np.outer(first, self._per_launch) - before, axis=0))
            total = ends[-1]
        return total, latest, float(launched[-1])
