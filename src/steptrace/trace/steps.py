"""The steps of a trace: where they begin and end, by the profiler's marks or, without any, by PyTorch's own labels.

Where a program calls the profiler's `step()`, each step has a mark (`ProfilerStep#N`). Without marks, a step goes from
the end of one optimizer step to the end of the next one, or from one wait for the data loader to the next.
"""

import itertools
from collections import Counter
from collections.abc import Container, Sequence
from typing import Final

import numpy as np
import pandas as pd

from steptrace.documents.quality import OptimizerSteps, StepSource
from steptrace.intervals import Ints
from steptrace.trace import names as naming
from steptrace.trace.columns import Columns, Mask, by_name

#: The most optimizers of one class that a step is taken to have. Each may step several times in it.
_MOST_OPTIMIZERS: Final = 4


def find_steps(
    labels: Columns, ops: Columns, names: pd.Index
) -> tuple[pd.DataFrame, StepSource | None, OptimizerSteps | None]:
    """The steps in order of time, and which labels mark them: the profiler's, or PyTorch's own if there are none.

    The last value says how optimizer steps make steps, if these mark them.
    """
    steps = _marked_steps(labels, names)
    if len(steps):
        return steps, "profiler", None
    thread, starts, ends, together = _steps_of_optimizer(labels, ops, names)
    if len(starts):
        return _as_steps(thread, starts, ends), "optimizer", together
    thread, starts, ends = _steps_of_loader(labels, names)
    return (_as_steps(thread, starts, ends), "loader", None) if len(starts) else (steps, None, None)


def step_of(times: Ints, steps: pd.DataFrame) -> Ints:
    """Row of the step whose host label holds each instant, -1 outside the steps."""
    if len(steps) == 0:
        return np.full(len(times), -1, dtype=np.int64)
    starts = steps["ts"].to_numpy()
    ends = starts + steps["host_dur"].to_numpy()
    row = np.searchsorted(starts, times, side="right").astype(np.int64) - 1
    return np.where((row >= 0) & (times < ends[np.maximum(row, 0)]), row, -1)


def _marked_steps(labels: Columns, names: pd.Index) -> pd.DataFrame:
    """The steps that the profiler marked. A step that is marked on several threads belongs to the first of them."""
    index = by_name(labels["name"], names, lambda name: -1 if (n := naming.step_index(name)) is None else n, np.int64)
    rows = np.flatnonzero(index >= 0)
    rows = rows[np.lexsort((labels["thread"][rows], labels["ts"][rows]))]
    marks = pd.DataFrame(
        {
            "index": index[rows],
            "ts": labels["ts"][rows],
            "dur": labels["dur"][rows],
            "host_dur": labels["dur"][rows],
            "thread": labels["thread"][rows],
        }
    )
    marks = _in_turn(marks)
    if marks["index"].is_unique:
        return marks
    # Two windows of one profiler may have the same numbers; overlapping marks are one step on several threads.
    ends = (marks["ts"] + marks["dur"]).groupby(marks["index"]).cummax()
    same_step = marks["ts"] < ends.groupby(marks["index"]).shift()
    return marks[~same_step].reset_index(drop=True).astype("int64")


def _in_turn(marks: pd.DataFrame) -> pd.DataFrame:
    """The marks without those of a second profiler: a step ends before the next one of its thread begins.

    A mark around several others is no step. If two marks share at least half of their time, the first one is kept. A
    mark that reaches a little into the next one ends where that begins.

    Args:
        marks: the marks of steps, in order of time.
    """
    starts = marks["ts"].to_numpy()
    lengths = marks["dur"].to_numpy().copy()
    thread = marks["thread"].to_numpy()
    if not (np.diff(starts) < lengths[:-1]).any():
        return marks
    kept: list[int] = []
    for number in np.unique(thread):
        rows = np.flatnonzero(thread == number)
        begins, ends = starts[rows], starts[rows] + lengths[rows]
        inside = np.searchsorted(begins, ends, side="left") - np.arange(len(rows)) - 1
        last: int | None = None
        for place, row in enumerate(rows.tolist()):
            within = ends[place + 1 : place + 1 + int(inside[place])] <= ends[place]
            if np.count_nonzero(within) > 1:
                continue
            if last is not None and starts[row] < starts[last] + lengths[last]:
                shared = min(starts[last] + lengths[last], starts[row] + lengths[row]) - starts[row]
                if 2 * shared >= min(lengths[last], lengths[row]):
                    continue
                lengths[last] = starts[row] - starts[last]
            kept.append(row)
            last = row
    marks = marks.assign(dur=lengths, host_dur=lengths).loc[sorted(kept)]
    return marks.reset_index(drop=True)


def _as_steps(thread: int, starts: Ints, ends: Ints) -> pd.DataFrame:
    columns = {"index": np.arange(len(starts)), "ts": starts, "dur": ends - starts, "host_dur": ends - starts}
    return pd.DataFrame(columns | {"thread": np.full(len(starts), thread)}).astype("int64")


def _labels_of_loop(labels: Columns, wanted: Mask) -> tuple[int, Ints, Ints]:
    """The thread with most of the labels, and the labels' starts and ends there in order; of nested ones the outer."""
    rows = np.flatnonzero(wanted)
    if len(rows) == 0:
        return 0, rows, rows
    thread = int(np.bincount(labels["thread"][rows]).argmax())
    rows = rows[labels["thread"][rows] == thread]
    rows = rows[np.lexsort((-labels["end"][rows], labels["ts"][rows]))]
    reach = np.maximum.accumulate(labels["end"][rows])
    rows = rows[np.append(True, labels["ts"][rows][1:] >= reach[:-1])]
    return thread, labels["ts"][rows], labels["end"][rows]


def _steps_of_optimizer(
    labels: Columns, ops: Columns, names: pd.Index
) -> tuple[int, Ints, Ints, OptimizerSteps | None]:
    """Thread, starts and ends of the steps from one optimizer step's end to the next one's, and how these make steps.

    A step may have several optimizers. Where a loader is waited for, it ends with the last one before the next wait;
    else with that of `_last_of_each_step`. Optimizers of one class are told apart by the backward passes before their
    steps (`_period`). The first step begins with its wait for the loader, and does not count without one: its start is
    unknown.
    """
    is_step = by_name(labels["name"], names, naming.OPTIMIZER_STEP.match)
    thread, begun, ends = _labels_of_loop(labels, is_step)
    of_loader, waits, _ = _labels_of_loop(labels, by_name(labels["name"], names, naming.LOADER_LABEL.match))
    none = np.empty(0, dtype=np.int64)
    if len(ends) == 0:
        return thread, none, none, None
    together: OptimizerSteps | None = None
    waits = waits if of_loader == thread else none
    if len(waits):
        until = np.append(begun[1:], np.iinfo(np.int64).max)
        last = np.searchsorted(waits, ends) < np.searchsorted(waits, until)
        last[-1] = True
        ends = ends[last]
    else:
        rows = np.flatnonzero(is_step & (labels["thread"] == thread))
        rows = rows[np.argsort(labels["ts"][rows], kind="stable")]
        kind = labels["name"][rows[np.searchsorted(labels["ts"][rows], begun)]]
        ends_step = None
        if (kind == kind[0]).all():
            passes = _backward_passes(ops, names, ends)
            updates = set(np.flatnonzero(names.isin(naming.UPDATES_GRADIENT)).tolist())
            together = _period(passes, updates)
            kind = np.arange(len(ends)) % (together.count or 1)
            ends_step = _last_of_rarest(passes, together.count or 1)
        ends = ends[_last_of_each_step(kind, begun, ends) if ends_step is None else ends_step]
    first = waits[:1][waits[:1] < begun[0]]
    starts = np.concatenate([first, ends[:-1]])
    return thread, starts, ends[len(ends) - len(starts) :], together


def _backward_passes(ops: Columns, names: pd.Index, ends: Ints) -> list[bytes]:
    """What tells backward passes apart, of each time between two optimizer steps: how often each node ran."""
    rows = np.flatnonzero(by_name(ops["name"], names, naming.is_backward))
    place = np.searchsorted(ends, ops["ts"][rows], side="left")
    rows = rows[(place > 0) & (place < len(ends))]
    place = place[(place > 0) & (place < len(ends))]
    order = np.lexsort((ops["name"][rows], place))
    nodes = np.split(ops["name"][rows][order], np.searchsorted(place[order], np.arange(2, len(ends))))
    return [of_pass.astype(np.int64).tobytes() for of_pass in nodes][: len(ends) - 1]


def _period(passes: Sequence[bytes], updates: Container[int]) -> OptimizerSteps:
    """How many optimizer steps of one class make a step of training: the backward passes repeat after that many.

    Each optimizer steps once in a period, or several times in a row, as the critic of a Wasserstein GAN does before its
    generator. Then two whole periods must be seen, and the passes must be of different networks: of other numbers of
    parameters, or neither with all nodes of the other. A loss that is added now and then is not. Where passes differ
    and no such period fits, how optimizer steps make steps is not known.

    Args:
        passes: the nodes of the backward pass before each optimizer step but the first.
        updates: the numbers of the nodes that add a gradient to a parameter's.
    """
    kinds = len(set(passes))
    if kinds <= 1:
        return OptimizerSteps(1)
    count = _repeats_after(passes)
    if count == len(passes) or kinds > _MOST_OPTIMIZERS:
        return OptimizerSteps(None)
    period = passes[:count]
    changes = sum(before != after for before, after in zip(period, [*period[1:], period[0]], strict=True))
    in_runs = changes == kinds and len(passes) >= 2 * count - 1
    distinct = in_runs and all(_are_of_two_networks(*pair, updates) for pair in itertools.combinations(set(period), 2))
    return OptimizerSteps(count if kinds == count or distinct else None)


def _repeats_after(values: Sequence[bytes]) -> int:
    """The shortest period of some values; their number without one (prefix function of Knuth, Morris and Pratt)."""
    border = [0] * len(values)
    for place in range(1, len(values)):
        length = border[place - 1]
        while length and values[length] != values[place]:
            length = border[length - 1]
        border[place] = length + (values[length] == values[place])
    return len(values) - border[-1]


def _are_of_two_networks(first_pass: bytes, second_pass: bytes, updates: Container[int]) -> bool:
    """Whether two backward passes are those of two networks (`_period`)."""
    first, second = (Counter(np.frombuffer(nodes, dtype=np.int64).tolist()) for nodes in (first_pass, second_pass))
    parameters = [sum(count for node, count in nodes.items() if node in updates) for nodes in (first, second)]
    return parameters[0] != parameters[1] or not (first <= second or second <= first)


def _last_of_rarest(passes: Sequence[bytes], count: int) -> Mask | None:
    """A mask of the optimizer steps that end a step of training; None if no optimizer steps several times in one.

    They are the last of the one with fewest steps: a generator follows its critic.

    Args:
        passes: the nodes of the backward pass before each optimizer step but the first.
        count: how many optimizer steps a step has.
    """
    often = Counter(passes[:count])
    if count == 1 or len(often) == count:
        return None
    rarest = min(often, key=often.__getitem__)
    period = [passes[(place - 1) % count] for place in range(count)]  # of the optimizer steps, the first one included
    last = next(place for place in range(count) if period[place] == rarest != period[(place + 1) % count])
    ends_step: Mask = np.arange(len(passes) + 1) % count == last
    return ends_step


def _last_of_each_step(kind: Ints, begun: Ints, ends: Ints) -> Mask:
    """A mask of the optimizer steps that end a step of training, where several kinds of optimizers take turns.

    The kinds that come about equally often are of one step: for matrices and for vectors, of a generator and of its
    critic. The last of them is the one after which most time passes, since a forward and a backward pass follow. Rarer
    kinds end no step.
    """
    kinds, often = np.unique(kind, return_counts=True)
    together = kinds[often >= often.max() - 1]
    counted = np.flatnonzero(np.isin(kind, together))
    before, after = kind[counted[:-1]], begun[counted[1:]] - ends[counted[:-1]]
    usual = [np.median(after[before == each_kind]) if (before == each_kind).any() else np.inf for each_kind in together]
    ends_step: Mask = kind == together[int(np.argmax(usual))]
    return ends_step


def _steps_of_loader(labels: Columns, names: pd.Index) -> tuple[int, Ints, Ints]:
    """Thread, starts and ends of the steps from one wait for the loader to the next; the last wait begins none."""
    thread, waits, _ = _labels_of_loop(labels, by_name(labels["name"], names, naming.LOADER_LABEL.match))
    return thread, waits[:-1], waits[1:]


def extend_to_gpu(steps: pd.DataFrame, gpu_step: Ints, gpu_end: Ints) -> None:
    """Lengthen each step to the end of the last GPU work that was launched in it."""
    starts = steps["ts"].to_numpy()
    ends = starts + steps["host_dur"].to_numpy()
    inside = gpu_step >= 0
    np.maximum.at(ends, gpu_step[inside], gpu_end[inside])
    steps["dur"] = ends - starts
