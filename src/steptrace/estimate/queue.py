"""Simulates a step as a queue that the host fills and the GPU empties: kernels, syncs, collectives, graph launches.

The host launches one item after another. A kernel starts when it has been launched and the kernel before it has ended.
At a sync the host waits for all kernels launched before it. Collectives run concurrently with the kernels; at a join
the kernels after it wait for all collectives before it. Copies on another stream run concurrently with both, one after
another. All times are vectors over the draws.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

import numpy as np

from steptrace.documents.estimate import COPIES_WAIT, WAIT_FOR_COPIES, OperatorCalls
from steptrace.estimate.times import COUNT, Draws
from steptrace.estimate.work import Kernel

#: The most items between two syncs that are simulated one by one; with more, neighbours are merged.
_MOST_ITEMS: Final = 4000
_AT_ONCE: Final = 1000
#: The most different rows of kernels in the cache.
_MOST_KNOWN: Final = 1000
#: Steps that are simulated where copies run beside the kernels, until a step is like the one before.
_STEPS_WITH_COPIES: Final = 3


@dataclass(frozen=True)
class Sync:
    """The host waits here for all kernels launched before."""


@dataclass(frozen=True, kw_only=True)
class Collective:
    """A collective between GPUs, on a separate stream.

    Attributes:
        operation: `all_reduce`, `all_gather`, `reduce_scatter` or `all_to_all`.
        bytes: size of a rank's input or output, whichever is larger.
        after_kernels: whether it sends results of earlier kernels. If not, as where FSDP gathers parameters ahead of
            time, it starts as soon as it is launched.
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


@dataclass(frozen=True)
class CopyBeside:
    """A copy between host and GPU on another stream than the kernels'.

    Attributes:
        place: its position among the kernels.
    """

    place: int


@dataclass(frozen=True)
class WaitForCopies:
    """Kernels launched from here on wait for copies beside them: for all but the last `later` that were launched."""

    later: int = 0


@dataclass(frozen=True)
class CopiesWait:
    """Copies beside the kernels, launched from here on, wait for the kernels launched before."""


Item = Kernel | Sync | Collective | Join | GraphLaunch | CopyBeside | WaitForCopies | CopiesWait
_Queued = TypeVar("_Queued", bound=Item | int)


def stream_wait_of(call: OperatorCalls) -> WaitForCopies | CopiesWait | None:
    """The wait between streams that an entry among the operators stands for; None for an operator."""
    if call.name == WAIT_FOR_COPIES:
        return WaitForCopies(call.arguments["later"])
    return CopiesWait() if call.name == COPIES_WAIT else None


def with_joins(entries: Iterable[tuple[Sequence[_Queued], bool]]) -> Iterator[_Queued | Join]:
    """The queue with its joins.

    Reductions of the backward pass run beside the rest of the pass, and the first operator after it waits for them: the
    optimizer needs the gradients of all GPUs. Any other collective is waited for at once.

    Args:
        entries: the items of each operator, in order, and whether they may run beside these reductions.
    """
    pending = False
    for items, beside in entries:
        sent = next((item for item in items if isinstance(item, Collective)), None)
        if pending and not beside and sent is None:
            yield Join()
            pending = False
        yield from items
        if sent is not None and beside and sent.after_kernels:
            pending = True
        elif sent is not None:
            yield Join()
    if pending:
        yield Join()


@dataclass(frozen=True)
class DrawnTimes:
    """The times of a step in each draw, in seconds.

    Attributes:
        step: from the beginning of one step to the beginning of the next.
        gpu: total time of the kernels, and of copies beside them.
        host: total time of the host's launches.
        communication: total time of the collectives.
        exposed: time that kernels wait for collectives.
        blocked: time that the host waits at syncs.
    """

    step: Draws
    gpu: Draws
    host: Draws
    communication: Draws
    exposed: Draws
    blocked: Draws


@dataclass
class _State:
    """When the host, the kernels and the collectives finish, up to this place in the queue, and the waits so far.

    `copies` has the ends of all copies beside the kernels, and `held` the time before which none of them starts.
    """

    host: Draws = field(default_factory=lambda: np.zeros(COUNT))
    kernels: Draws = field(default_factory=lambda: np.zeros(COUNT))
    collectives: Draws = field(default_factory=lambda: np.zeros(COUNT))
    copies: list[Draws] = field(default_factory=list)
    held: Draws = field(default_factory=lambda: np.zeros(COUNT))
    exposed: Draws = field(default_factory=lambda: np.zeros(COUNT))
    blocked: Draws = field(default_factory=lambda: np.zeros(COUNT))


def simulate(
    order: Sequence[Item | int], seconds: Draws, launches: Draws, per_launch: Draws, collectives: Sequence[Draws] = ()
) -> DrawnTimes:
    """Simulate steps until the time of a step is steady.

    Args:
        order: the queue: positions of kernels in `seconds`, and other items as themselves.
        seconds: time of each kernel in each draw [kernels, draws].
        launches: the host's launches for each kernel [kernels].
        per_launch: seconds of the host for one launch, in each draw [draws].
        collectives: seconds of each collective of the queue, in their order [draws each].

    Returns:
        The times of one step, in each draw.
    """
    in_line = _counts((item for item in order if isinstance(item, int)), len(seconds))
    beside = _counts((item.place for item in order if isinstance(item, CopyBeside)), len(seconds))
    kernels, copies = (
        np.asarray(counts @ seconds) if len(seconds) else np.zeros(COUNT) for counts in (in_line, beside)
    )
    gpu = kernels + copies
    graphs = sum(isinstance(item, GraphLaunch) for item in order)
    host = (float((in_line + beside) @ launches) + len(collectives) + graphs) * per_launch
    communication = np.sum(collectives, axis=0) if len(collectives) else np.zeros(COUNT)
    has_syncs = any(isinstance(item, Sync) for item in order)
    if not has_syncs and not len(collectives) and not beside.any():
        return DrawnTimes(np.maximum(gpu, host), gpu, host, communication, np.zeros(COUNT), np.zeros(COUNT))
    numbered = _numbered(order)
    stretches = _Stretches(seconds, launches, per_launch)
    others = _Others(collectives, seconds, launches, per_launch)
    if has_syncs:  # no kernel is in flight after the last sync, so the simulated step begins and ends there
        last = max(place for place, (item, _) in enumerate(numbered) if isinstance(item, Sync))
        rotated = numbered[last + 1 :] + numbered[: last + 1]
        state = before = _State()
        # A copy beside the kernels may be in flight: kernels of the next step wait for it.
        for _ in range(_STEPS_WITH_COPIES if beside.any() else 1):
            before = replace(state)
            _run(rotated, state, stretches, others)
        step = np.maximum(state.host - before.host, copies)
        exposed, blocked = state.exposed - before.exposed, state.blocked - before.blocked
        return DrawnTimes(step, gpu, host, communication, exposed, blocked)
    state = _State()
    _run(numbered, state, stretches, others)
    _run(numbered, state, stretches, others)  # the host now runs ahead, so later steps differ
    second = _end(state)
    waited = state.exposed.copy()
    _run(numbered, state, stretches, others)
    step = np.maximum(_end(state) - second, np.maximum(np.maximum(kernels, copies), host))
    return DrawnTimes(step, gpu, host, communication, state.exposed - waited, np.zeros(COUNT))


def _counts(places: Iterable[int], kinds: int) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """How often each of so many kernels stands in a queue."""
    return np.bincount(np.fromiter(places, dtype=np.int64), minlength=kinds)


def _end(state: _State) -> Draws:
    """When all is over but copies that nothing waits for yet: they belong to the next step."""
    return np.maximum(state.host, np.maximum(state.kernels, state.collectives))


_Numbered = list[tuple[Item | int, int]]


def _numbered(order: Sequence[Item | int]) -> _Numbered:
    """Each item, with the number of collectives before it."""
    before = 0
    result = []
    for item in order:
        result.append((item, before))
        before += isinstance(item, Collective)
    return result


@dataclass(frozen=True)
class _Others:
    """What is not a row of kernels: seconds of each collective; seconds and launches of copies beside the kernels."""

    collectives: Sequence[Draws]
    seconds: Draws
    launches: Draws
    per_launch: Draws


def _run(order: _Numbered, state: _State, stretches: "_Stretches", others: _Others) -> None:
    """Move the state through a queue."""
    for places, (item, number) in _rows(order):
        if places:
            stretches.run(places, state)
        if isinstance(item, Sync):
            until = np.maximum(state.host, state.kernels)
            state.blocked = state.blocked + (until - state.host)
            state.host = until
        elif isinstance(item, Collective):
            state.host = state.host + others.per_launch
            start = np.maximum(state.host, state.collectives)
            start = np.maximum(start, state.kernels) if item.after_kernels else start
            state.collectives = start + others.collectives[number]
        elif isinstance(item, GraphLaunch):
            state.host = state.host + others.per_launch
        elif isinstance(item, Join):
            waits = np.maximum(state.collectives - state.kernels, 0.0)
            state.exposed = state.exposed + waits
            state.kernels = state.kernels + waits
        elif isinstance(item, CopyBeside):
            state.host = state.host + others.launches[item.place] * others.per_launch
            start = np.maximum(state.host, state.held)
            start = np.maximum(start, state.copies[-1]) if state.copies else start
            state.copies.append(start + others.seconds[item.place])
        elif isinstance(item, WaitForCopies):
            # Copies of steps before the simulated ones are over.
            if len(state.copies) > item.later:
                state.kernels = np.maximum(state.kernels, state.copies[-1 - item.later])
        elif isinstance(item, CopiesWait):
            state.held = np.maximum(state.held, state.kernels)


def _rows(order: _Numbered) -> Iterator[tuple[list[int], tuple[Item | None, int]]]:
    """Consecutive kernels, and the item that ends the row; (None, 0) at the end of the queue."""
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
    """Simulates rows of consecutive kernels. A row's times do not depend on what ran before, so equal rows are cached.

    A row ends at the latest of these times: the end of the kernels before it plus all of its kernels; and, for each of
    its kernels, that kernel's launch plus the kernel and all after it.
    """

    def __init__(self, seconds: Draws, launches: Draws, per_launch: Draws) -> None:
        self._seconds = seconds
        self._launches = launches
        self._per_launch = per_launch
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
        """Total seconds of the kernels, how far a launch lags at most behind the kernels before it, and launches."""
        launches = self._launches[places]
        group = max(1, -(-len(places) // _MOST_ITEMS))
        launched = np.cumsum(launches)
        total = np.zeros(COUNT)
        latest = np.full(COUNT, -np.inf)
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
