"""Finds branches on a step counter, such as `if step % 10 == 0`, and their periods.

A program that logs every 50th step looks like one that never logs if only four of its steps are followed. The condition
itself is evaluated in each step, though, taken or not. So while a few steps run, each line that compares a remainder
is watched: what is divided must grow by as much from each step to the next, and then the divisor says after how many
steps the branch comes round. Divisors are read where the program has them, as in `args.log_interval`.

Other forms stand for remainders; `steptrace.engine.step_conditions` finds them all in the source. Where a setting of
the program stands before the condition and rules it out (`args.verbose and step % 10 == 0`), there is no branch. What
goes by the clock is not seen.

A counter may also be awaited: by a number (`step == 1000`, `step >= 1000`), by a list (`step in milestones`), or by an
iterator that gives flags (`if next(flags)`). Such a branch has no period. Where the followed steps end before it is
taken for the first time, that is said, with its line.

Plain Python, by its tracing hook. A debugger or a coverage tool that uses the hook is left alone.
"""

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from inspect import CO_OPTIMIZED
from itertools import islice, pairwise
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple

from steptrace.engine.condition_values import lets_pass, number_of, numbers_of
from steptrace.engine.frames import trace_file_name
from steptrace.engine.step_conditions import (
    AwaitingCondition,
    Remainder,
    Span,
    awaiting_in,
    has_conditions,
    remainders_in,
)

#: Whether `frame.f_locals` of a function is a copy of its variables, which stays with the function.
_COPIES_VARIABLES: Final = sys.version_info < (3, 13)
#: References to such a copy that are not the program's: of its frame, of a variable here, and of an argument.
_OWN_REFERENCES: Final = 3
#: More divisors of one comparison are no intervals of a step counter, but arithmetic. Chosen freely.
_MOST_DIVISORS: Final = 8
#: Three steps give two differences, which must be equal. A first standstill does not count.
LEAST_STEPS: Final = 3


class StepBranch(NamedTuple):
    """A line that branches in the same way after `every` steps, by a step counter. A line may have several."""

    file: str
    line: int
    every: int


class AwaitedBranch(NamedTuple):
    """A line that waits for the step counter, and whose branch no followed step has taken.

    Attributes:
        file: the source file; `line` is its line there.
        awaits: what the counter is compared with: a `number`, a `list`, or an `iterator`.
        in_steps: it is taken in so many steps after the last one that was seen; None where that is not known.
    """

    file: str
    line: int
    awaits: str
    in_steps: int | None


class StepCounters:
    """Watches the lines that compare remainders, in the thread that calls `watch`.

    Args:
        aside: makes a context in which conditions are evaluated: that may read properties of the program's objects.

    Example:
        counters = StepCounters()
        counters.watch()
        for _ in range(LEAST_STEPS):
            train_step()
            counters.step_ends()
        counters.stop()
        print(counters.branches())
    """

    def __init__(self, aside: Callable[[], AbstractContextManager[object]] = nullcontext) -> None:
        self._aside = aside
        #: The dividend at the last evaluation of each comparison in each step, by divisor: a loop over callbacks may
        #: compare the same counter with the interval of each.
        self._steps: list[dict[Remainder, dict[int, int]]] = [{}]
        #: The counter and its target, at the last evaluation of each condition in each step.
        self._awaited: list[dict[AwaitingCondition, tuple[int, tuple[int, ...]]]] = [{}]
        #: The conditions on an iterator that were evaluated, and whether any was met.
        self._iterators: dict[AwaitingCondition, bool] = {}
        #: The functions with these conditions, by the identity of their code: its hash takes long.
        self._asking: dict[int, CodeType] = {}
        #: The number of steps that have ended, in all and when `watch` was called.
        self._ended = 0
        self._first_step = 0
        self._watching = False
        self._counters_known = False
        self._copy: dict[str, Any] | None = None

    def watch(self) -> None:
        """Begin to watch, also in functions that already run. Does nothing if another tool traces the program."""
        if sys.gettrace() is not None:
            return
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if frame.f_trace is None and has_conditions(frame.f_code):
                frame.f_trace = self._line
            frame = frame.f_back
        sys.settrace(self._call)
        self._watching = True
        self._first_step = self._ended

    def step_ends(self) -> None:
        """Say that a step has ended and the next one begins."""
        self._ended += 1
        self._free_copy()
        if not self._watching:
            return
        if not self._counters_known:
            self._steps.append({})
            self._awaited.append({})
        elif all(self._iterators.values()):
            self.stop()

    @property
    def sees_any(self) -> bool:
        """Whether the program has compared any remainder so far."""
        return any(self._steps)

    @property
    def watched_enough(self) -> bool:
        """Whether enough steps were watched to know the branches on a counter: one more if it first stood still."""
        ended = self._steps[:-1]
        return len(ended) > LEAST_STEPS or (len(ended) == LEAST_STEPS and not _first_stands_still(ended))

    def counters_known(self) -> None:
        """Stop to watch counters. Go on to watch iterators that have not let the program branch so far.

        Python then still reports each call of a function, but lines only in functions that ask such an iterator.
        """
        self._counters_known = True
        if all(self._iterators.values()):
            self.stop()

    def stop(self) -> None:
        """Stop to watch, unless another tool traces the program by now."""
        if self._watching:
            if sys.gettrace() == self._call:
                sys.settrace(None)
            self._leave(sys._getframe(1))
        self._watching = False

    def _leave(self, frame: FrameType | None) -> None:
        """Leave the functions that run, so that they can be watched again."""
        self._free_copy()
        while frame is not None:
            if frame.f_trace == self._line:
                del frame.f_trace
            frame = frame.f_back

    def _free_copy(self) -> None:
        """Empty the copy of a function's variables that Python made for the latest conditions.

        It would keep the tensors of that line alive while the program goes on. Python must not be about to write the
        copy back, as it does at the end of a line's tracing. A copy that the program holds, by `locals()`, is its own.
        """
        copy = self._copy
        self._copy = None
        if copy is not None and sys.getrefcount(copy) <= _OWN_REFERENCES:
            copy.clear()

    def branches(self) -> list[StepBranch]:
        """The branches on a counter that grows with the steps, by file, line and period, without those of each step."""
        whole = [step for step in self._steps if step]
        found: set[StepBranch] = set()
        for remainder in {remainder: None for step in whole for remainder in step}:
            by_step = [step[remainder] for step in whole if remainder in step]
            place = trace_file_name(remainder.file), remainder.line
            if max(map(len, by_step)) > _MOST_DIVISORS:
                continue
            for divisor in by_step[-1]:
                # A divisor that some steps lack changes with the steps, as in `step & (step - 1)`.
                if all(divisor in dividends for dividends in by_step):
                    steps = _period_of([dividends[divisor] for dividends in by_step], divisor)
                    found.add(StepBranch(*place, steps))
        return sorted(branch for branch in found if branch.every > 1)

    def awaited(self) -> list[AwaitedBranch]:
        """The branches for which a counter is awaited, and that were not taken so far, by file and line."""
        seen = {condition for step in self._awaited for condition in step}
        branches: dict[tuple[str, int], AwaitedBranch] = {}
        periodic = {(branch.file, branch.line) for branch in self.branches()}
        for condition in sorted(seen, key=lambda condition: (condition.file, condition.line, condition.column)):
            steps = _steps_until([step.get(condition) for step in self._awaited], condition.beyond)
            # Watching may have ended before the last step did.
            left = 0 if steps is None else steps + len(self._awaited) - (self._ended - self._first_step)
            place = trace_file_name(condition.file), condition.line
            if left > 0 and place not in periodic:
                branches.setdefault(place, AwaitedBranch(*place, condition.awaits, left))
        for condition, is_met in self._iterators.items():
            place = trace_file_name(condition.file), condition.line
            if not is_met:
                branches.setdefault(place, AwaitedBranch(*place, condition.awaits, None))
        return [branch for _, branch in sorted(branches.items())]

    def _call(self, frame: FrameType, _event: str, _argument: object) -> Any:
        is_watched = id(frame.f_code) in self._asking if self._counters_known else has_conditions(frame.f_code)
        return self._line if is_watched else None

    def _line(self, frame: FrameType, event: str, _argument: object) -> Any:
        """Python calls this before a line runs: evaluate the line's conditions."""
        self._free_copy()
        if event == "line":
            file = frame.f_code.co_filename
            line = frame.f_lineno
            remainders = () if self._counters_known else remainders_in(file).get(line, ())
            for remainder in remainders:
                with self._evaluating():
                    if all(lets_pass(guard, frame) for guard in remainder.guards):
                        left = number_of(remainder.left, frame)
                        right = number_of(remainder.right, frame)
                        bits = 1 << right.bit_length() if remainder.is_mask else right
                        dividends = self._steps[-1].setdefault(remainder, {})
                        if bits in dividends or len(dividends) <= _MOST_DIVISORS:
                            dividends[bits] = left
            awaited = awaiting_in(file).get(line, ())
            for condition in awaited:
                if condition.counter is None:
                    self._asks_iterator(condition, frame)
                elif not self._counters_known:
                    self._awaits(condition, frame)
            if _COPIES_VARIABLES and (remainders or awaited) and frame.f_code.co_flags & CO_OPTIMIZED:
                self._copy = frame.f_locals
        elif event == "opcode":
            self._runs(frame)
        return self._line

    def _asks_iterator(self, condition: AwaitingCondition, frame: FrameType) -> None:
        """Note that the condition is asked, or that its body runs, whose first line this may be."""
        assert condition.body is not None
        met = self._iterators.get(condition, False)
        self._asking[id(frame.f_code)] = frame.f_code
        if condition.body.line != condition.line:
            self._iterators[condition] = met or frame.f_lineno == condition.body.line
            return
        self._iterators[condition] = met
        if not met and not frame.f_trace_opcodes:
            # Lines do not tell whether a body on the same line runs. Python 3.12 heeds this only when tracing begins.
            frame.f_trace_opcodes = True
            sys.settrace(sys.gettrace())

    def _runs(self, frame: FrameType) -> None:
        """Python calls this before an instruction runs, in functions where a condition and its body are on one line."""
        line, end_line, column, end_column = next(islice(frame.f_code.co_positions(), frame.f_lasti // 2, None))
        if line is None or column is None or end_line is None or end_column is None:
            return
        instruction = Span(line, column, end_line, end_column)
        for condition in awaiting_in(frame.f_code.co_filename).get(frame.f_lineno, ()):
            if condition.body is not None and condition in self._iterators and condition.body.holds(instruction):
                self._iterators[condition] = True

    def _awaits(self, condition: AwaitingCondition, frame: FrameType) -> None:
        """Record the counter and its target."""
        assert condition.counter is not None
        assert condition.target is not None
        with self._evaluating():
            if all(lets_pass(guard, frame) for guard in condition.guards):
                counter = number_of(condition.counter, frame)
                if condition.awaits == "list":
                    targets = numbers_of(condition.target, frame)
                else:
                    targets = (number_of(condition.target, frame),)
                self._awaited[-1][condition] = counter, targets

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        """A context in which a condition is evaluated. A property of the program may raise anything."""
        try:
            with self._aside():
                yield
        except Exception:
            return


def whole_periods(branches: Iterable[StepBranch], *, least: int, most: int) -> int:
    """The number of steps to follow: at least `least`, and whole periods of the branches.

    Periods above `most` steps are ignored. If the common period of all branches is longer than that, the longest single
    period that is not decides.
    """
    periods = sorted({branch.every for branch in branches if branch.every <= most})
    together = math.lcm(*periods)
    period = together if together <= most else max(periods, default=1)
    return math.ceil(least / period) * period


def _period_of(dividends: Sequence[int], divisor: int) -> int:
    """The number of steps after which a remainder is the same again; 1 if the dividend does not count steps.

    Args:
        dividends: the dividend in each step.
        divisor: that of all steps.
    """
    if len(dividends) > LEAST_STEPS and _stands_still(dividends):
        dividends = dividends[1:]
    distances = {after - before for before, after in pairwise(dividends)}
    grows = [distance for distance in distances if distance >= 0]  # a counter may start anew with each epoch
    if len(dividends) < LEAST_STEPS or len(grows) != 1 or divisor < 1:
        return 1
    return divisor // math.gcd(divisor, grows[0])  # 1 if the counter stands still


def _first_stands_still(steps: Sequence[Mapping[Remainder, Mapping[int, int]]]) -> bool:
    """Whether a dividend grows from the second step on only. The first batch may take two steps, as of StyleGAN2."""
    return any(
        _stands_still([step[remainder][divisor] for step in steps])
        for remainder, dividends in steps[0].items()
        for divisor in dividends
        if all(divisor in step.get(remainder, {}) for step in steps)
    )


def _stands_still(dividends: Sequence[int]) -> bool:
    return dividends[0] == dividends[1] < dividends[2]


def _steps_until(seen: Sequence[tuple[int, tuple[int, ...]] | None], beyond: int) -> int | None:
    """The number of steps after the last one until a counter meets its target; None if it does not grow, or has met it.

    Args:
        seen: the counter and its targets in each step; None where the program did not ask.
        beyond: 1 if the counter must be above the target, else 0.
    """
    asked = [(number, *comparison) for number, comparison in enumerate(seen) if comparison is not None]
    if len(asked) < LEAST_STEPS or len({targets for *_, targets in asked}) > 1:
        return None
    last, counter, targets = asked[-1]
    grows = {(after[1] - before[1]) / (after[0] - before[0]) for before, after in pairwise(asked)}
    if len(grows) != 1 or (by := grows.pop()) <= 0:
        return None
    if any(value >= target + beyond for _, value, _ in asked for target in targets[-1:]):
        return None  # the last of them is behind us
    ahead = [target + beyond for target in targets if target + beyond > counter]
    if len(ahead) < len(targets) and any(value in targets for _, value, _ in asked):
        return None  # the branch was taken
    return last + math.ceil((min(ahead) - counter) / by) - (len(seen) - 1)
