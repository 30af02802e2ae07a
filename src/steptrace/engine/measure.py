"""The phases of any measured training: warm-up, timed steps, a profiled window, watched steps.

Within a phase nothing waits for the device. Between two phases the host waits for it. On a GPU steps are timed by CUDA
events. After the timed steps, some steps run under the profiler (`steptrace.engine.recording`), one is watched operator
by operator for its source lines, and on a GPU two are checked for PyTorch's own warnings of syncs. Needs PyTorch and
the standard library only.
"""

import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch

from steptrace.engine.clock import Clock, current_clock
from steptrace.engine.compilations import LOG
from steptrace.engine.kinds import FIRST_STEPS, first_of_each, kinds_of, window_of_each
from steptrace.engine.memory import peaks
from steptrace.engine.process_facts import compiled_graphs, gpu
from steptrace.engine.rank_record import MeasuredStep, TraceEnd, WarnedSyncs
from steptrace.engine.recording import WITH_TRACE, Before, Recording, RecordingSettings, Request
from steptrace.engine.session import Phases, Session
from steptrace.engine.step_recorders import (
    OperatorCounter,
    OpLineRecorder,
    counted_warnings,
    first_line,
    is_of_compiled_code,
)
from steptrace.engine.steps import Step
from steptrace.rank import from_rank_0, ranks_can_talk, this_rank

#: The fewest timed steps, however long they take.
LEAST_TIMED: Final = 5
#: The same if a step takes longer than `SLOW_STEP_S`.
LEAST_TIMED_SLOW: Final = 3
#: Steps that take longer are slow: their phases have as few steps as still explain them. Our choice: 5 timed steps of
#: 3 s are 15 s, three quarters of the default `at_most_s`.
SLOW_STEP_S: Final = 3.0
#: Warm-up steps after which a slow training is timed. The first one may include a compilation.
_WARMUP_SLOW: Final = 2
#: A phase after the timed steps (a pass of a study, the profiled window) takes at most this part of `at_most_s`.
_FURTHER_PHASE: Final = 0.25
#: Steps that are watched for PyTorch's own warnings: two, to see whether the number of warnings varies.
_WARNED_STEPS: Final = 2

#: A step whose time is taken: its phase, the clock, its first and last moment, and its content. Losses stay on their
#: device until the record is made.
_Row = tuple[str, Clock, Any, Any, Step]


@dataclass(frozen=True)
class MeasureSettings:
    """Settings of a measurement.

    Attributes:
        out: folder for the trace.
        warmup: steps before the timed ones.
        steps: timed steps.
        window: the profiled steps; None: no step is profiled or watched.
        at_most_s: seconds after which the warm-up ends, and the timed steps, with at least `FIRST_STEPS` and
            `LEAST_TIMED` steps; if a step takes over `SLOW_STEP_S`, `LEAST_TIMED_SLOW` steps are timed, one is profiled
            and one watched. Phases after the timed steps have a quarter of it each, with at least one step. Several
            ranks have to take the same steps: rank 0 says before, by the shortest step so far, how many fit.
            None: no limit.
    """

    out: Path
    warmup: int
    steps: int
    window: RecordingSettings | None
    at_most_s: float | None = None


class Measurement:
    """One process's measurement; `phases()` fills its `record`, by the names of `RankRecord`, while it runs.

    A program that joins the `session` says when its first step begins. An error in one of its watched steps is thrown
    into the phases instead of ending the program, so compiled code is watched as far as it works.

    Args:
        settings: the settings of the measurement.
        session: the session that the program can join.
        label: called with True or False, which switches the labels on the parts of a step on or off.
        between: called with the name of a phase when it is over, before the next one begins. It may train on.
        progress: called before each step and after the last with the phase, its steps so far, and their number.
    """

    def __init__(
        self,
        settings: MeasureSettings,
        session: Session,
        *,
        label: Callable[[bool], object] = lambda _: None,
        between: Callable[[str], object] = lambda _: None,
        progress: Callable[[str, int, int], object] = lambda *_: None,
    ) -> None:
        self.record: dict[str, Any] = {"notes": []}
        self._settings = settings
        self._session = session
        self._label = label
        self._between = between
        self._progress = progress
        #: When the program's first step began: the clock, its moment, and the deadline of the warm-up. None where that
        #: is not known, and once the step is over.
        self._began: tuple[Clock, Any, float] | None = None
        self._rows: list[_Row] = []
        self._over = 0
        #: How many operators each of the last steps of the warm-up ran.
        self._operators: list[int] = []
        #: The steps after the profiled ones that are watched, as bits; the lowest bit is the next step.
        self._to_watch = 1
        #: Steps between the timed ones and the profiler's start.
        self._left_out = 0
        #: Seconds that the host took for the shortest step so far, without the first step, whose start is not known.
        self._shortest_s = math.inf
        #: Whether a step takes longer than `SLOW_STEP_S`. Known after the warm-up, and the same on all ranks.
        self._slow = False

    def begin(self) -> None:
        """Note that the program's first step begins now."""
        clock = current_clock()
        self._began = clock, clock.now(), self._ends_at()

    def phases(self) -> Phases:
        """Run the warm-up, then timed, profiled and watched steps."""
        process = os.getpid()
        trace: Recording | None = None
        try:
            yield from self._warmed_up()
            while not (yield from self._timed()):
                self._rows.clear()
                yield from self._warmed_up()
            self._note_rows()
            self.record |= peaks()
            self._between("timed")
            if self._settings.window is not None:
                window = self._window(self._settings.window)
                trace = Recording(Request("launch", str(self._settings.out), window), self._before, LOG.record)
                yield from self._profiled(trace, window)
                if trace.state in WITH_TRACE:
                    yield from self._watched()
        finally:
            if os.getpid() == process:  # not in a forked child, to which profiler and GPU do not belong
                if trace is not None:
                    trace.close()
                    self.record["trace"] = TraceEnd(
                        state=trace.state,
                        message=trace.message,
                        file=str(trace.trace),
                    )
                self._note_rows()

    def so_far(self) -> dict[str, Any]:
        """The record of the steps that are over, without waiting for a GPU: losses stay there, and are null."""
        rows_over = [(*row[:4], replace(row[4], losses=[])) for row in self._rows if row[1].is_over(row[3])]
        return self.record | self._of_rows(rows_over)

    def _note_rows(self) -> None:
        current_clock().synchronize()
        self.record |= self._of_rows(self._rows)

    def _of_rows(self, rows: Sequence[_Row]) -> dict[str, Any]:
        plain = _rows(rows)
        return {"rows": plain, "operators": self._operators, "gpu": gpu(), "clock": current_clock().name}

    def _next(self, phase: str, done: int, total: int) -> Generator[None, Step, Step]:
        """Wait for the end of a phase's next step; `done` have ended so far."""
        self._progress(phase, done, total)
        began_s = time.monotonic()
        step = yield
        if self._over:
            self._shortest_s = min(self._shortest_s, time.monotonic() - began_s)
        self._over += 1
        if done + 1 == total:
            self._progress(phase, total, total)
        return step

    def _warmed_up(self) -> Phases:
        """The warm-up. Operators are counted in its later steps, unless the program has joined the session.

        No step is timed across the moment when the program initialises CUDA.
        """
        clock = current_clock()
        left = self._settings.warmup
        done = 0
        ends_at = self._ends_at()
        start: Any = None
        counter: OperatorCounter | None = None
        try:
            while left:
                step = yield from self._next("warm-up", done, done + left)
                if self._began is not None:
                    clock, start, ends_at = self._began
                    self._began = None
                left, done = (self._settings.warmup - 1, 1) if step.new_leader else (left - 1, done + 1)
                if done >= FIRST_STEPS and time.monotonic() > ends_at:
                    left = 0
                if done >= _WARMUP_SLOW and not self._several and self._is_slow():
                    left = 0
                if done == FIRST_STEPS and self._several:
                    left = min(left, max(self._that_fit() - done, 0))
                if not clock.on_gpu and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
                    clock = current_clock()
                    start = None
                end = clock.now()
                if start is not None:
                    self._rows.append(("warmup", clock, start, end, step))
                start = end
                if counter is not None:
                    counter.end()
                    if step.new_leader:
                        counter.counts.clear()
                if left and done >= FIRST_STEPS and not self._session.joined:
                    counter = counter or OperatorCounter(left)
                    counter.begin()
        finally:
            if counter is not None:
                counter.end(count=False)
                self._operators = counter.counts

    def _timed(self) -> Generator[None, Step, bool]:
        """Timed steps; False if another optimizer ends the steps from now on."""
        clock = current_clock()
        clock.synchronize()
        self._between("warmup")
        graphs = compiled_graphs()
        with _nvml() as sampler:
            planned = self._settings.steps
            number = 0
            self._slow = bool(self._agreed(int(self._is_slow()), "is_slow"))
            steps = planned
            if self._slow:
                steps = min(planned, LEAST_TIMED_SLOW)
            elif self._several:
                steps = min(planned, max(self._that_fit(), LEAST_TIMED))
            start = clock.now()
            ends_at = self._ends_at()
            while number < steps and (number < LEAST_TIMED or time.monotonic() <= ends_at):
                step = yield from self._next("timed", number, steps)
                if self._began is not None:  # without a warm-up, the program's first step is a timed one
                    clock, start, ends_at = self._began
                    self._began = None
                if step.new_leader:
                    return False
                end = clock.now()
                self._rows.append(("timed", clock, start, end, step))
                start = end
                number = number + 1
            clock.synchronize()
        if number < planned:
            slow_step_s = SLOW_STEP_S if self._slow else None
            self.note(
                "fewer_timed_steps",
                steps=number,
                planned=planned,
                at_most_s=self._settings.at_most_s,
                slow_step_s=slow_step_s,
            )
        self.record["nvml"] = sampler.summary() if sampler else None
        self.record["notes"] += sampler.notes if sampler else []
        if (new_graphs := compiled_graphs() - graphs) > 0:  # the timed steps include the time to compile
            self.note("recompiled", graphs=new_graphs)
        return True

    def _profiled(self, trace: Recording, window: RecordingSettings) -> Phases:
        for number in range(self._left_out):
            yield from self._next("skipped", number, self._left_out)
        clock = current_clock()
        recorded = 0
        done = 0
        self._label(True)
        trace.step(self._over)
        start = clock.now()
        while not trace.done:
            step = yield from self._next("under the profiler", done, window.warmup + window.steps)
            end = clock.now()
            done += 1
            trace.step(self._over)
            if trace.count > recorded:
                recorded = trace.count
                self._rows.append(("profiled", clock, start, end, step))
            start = clock.now()
        self._label(False)

    def _window(self, asked: RecordingSettings) -> RecordingSettings:
        """The profiled window: `asked`, shortened if its steps take too long.

        In a program that has not joined the session, steps may be skipped before it and added to it, so that it holds a
        step of each kind that comes regularly.
        """
        fitting = replace(asked, warmup=self.that_fit(asked.warmup), steps=self.that_fit(asked.steps))
        if fitting.steps < asked.steps:
            self.note(
                "fewer_profiled_steps",
                steps=fitting.steps,
                planned=asked.steps,
                step_s=self._shortest_s,
                at_most_s=self._settings.at_most_s,
            )
        if self._session.joined or fitting != asked:  # the program may have run passes in between
            return fitting
        kinds = kinds_of(self._timed_ns(), self._operators)
        wait, steps = window_of_each(kinds, asked.warmup, asked.steps)
        watched = first_of_each(kinds, wait + asked.warmup + steps)
        # Ranks may see different kinds of steps, but must take the same steps.
        self._left_out = from_rank_0(wait, "steps_left_out")
        self._to_watch = from_rank_0(sum(1 << number for number in watched), "steps_to_watch")
        return replace(asked, steps=from_rank_0(steps, "profiled_steps"))

    def _watched(self) -> Phases:
        """Run a step of each regular kind under `OpLineRecorder`; on a GPU two more with PyTorch's warnings of syncs.

        Only rank 0 records their lines.
        """
        first_rank = not this_rank().rank
        # The program's own compiled code would fail under a dispatch mode.
        if not self._session.joined and compiled_graphs():
            self.note("compiled_without_lines")
            return
        self._label(True)
        recorders: list[OpLineRecorder] = []
        try:
            for number in range(steps := self._to_watch.bit_length()):
                is_watched = self._to_watch >> number & 1
                recorders += [OpLineRecorder()] * is_watched
                with recorders[-1] if is_watched else nullcontext():
                    yield from self._next("watched", number, steps)
        except Exception as error:
            # Of any type: not everything works under a dispatch mode, and the timings must not be lost by it.
            if is_of_compiled_code(error):
                self.note("compiled_without_lines")
            else:
                self.note("lines_incomplete", error=first_line(error))
        if first_rank:
            self._record_lines(recorders)
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            yield from self._warned(recorders, first_rank=first_rank)

    def _warned(self, recorders: list[OpLineRecorder], *, first_rank: bool) -> Phases:
        counts: list[int] = []
        torch.cuda.synchronize()
        try:
            for number in range(_WARNED_STEPS):
                recorders.append(OpLineRecorder())
                with recorders[-1], counted_warnings(counts):
                    yield from self._next("watched for syncs", number, _WARNED_STEPS)
        except Exception as error:  # as above
            self.note("sync_check_left_out", error=first_line(error))
            return
        if first_rank:
            self.record["warned_syncs"] = WarnedSyncs(by_step=tuple(counts), per_step=statistics.median(counts))
            self._record_lines(recorders)

    def _record_lines(self, recorders: Sequence[OpLineRecorder]) -> None:
        """Record the lines of all watched steps: a step that logs or evaluates calls from other lines than the next."""
        self.record["op_lines"] = [row for step, recorder in enumerate(recorders) for row in recorder.rows(step)]
        self.record["sources"] = {file: text for recorder in recorders for file, text in recorder.sources().items()}

    def note(self, code: str, **figures: Any) -> None:
        """Record a note: a code of `documents.note` with its figures."""
        self.record["notes"].append({"code": code, "figures": figures})

    def _before(self) -> Before:
        timed = [step for phase, *_, step in self._rows if phase == "timed"]
        waits = [step.wait_ns for step in timed] if any(step.batches for step in timed) else []
        return Before(self._timed_ns(), self._operators, self._left_out, waits)

    def _timed_ns(self) -> list[int]:
        """The step times, once the timed steps are over."""
        return [clock.between_ns(start, end) for phase, clock, start, end, _ in self._rows if phase == "timed"]

    def that_fit(self, planned: int) -> int:
        """How many of a later phase's steps fit into its part of `at_most_s`: at least one, unless none is planned.

        All ranks must call it, between the same two steps.
        """
        limit_s = self._settings.at_most_s
        if limit_s is None or not planned:
            return planned
        fit = 1 if self._slow else int(min(limit_s * _FURTHER_PHASE / max(self._shortest_s, 1e-9), planned))
        return min(planned, max(self._agreed(fit, "steps_that_fit_a_later_phase"), 1))

    def _is_slow(self) -> bool:
        return self._settings.at_most_s is not None and SLOW_STEP_S < self._shortest_s < math.inf

    def _agreed(self, value: int, purpose: str) -> int:
        """Rank 0's value; this process's own if the ranks cannot talk."""
        return from_rank_0(value, purpose) if ranks_can_talk() else value

    def _ends_at(self) -> float:
        """The deadline of a phase that begins now, by the monotonic clock; none with several ranks."""
        limit_s = None if self._several else self._settings.at_most_s
        return math.inf if limit_s is None else time.monotonic() + limit_s

    @property
    def _several(self) -> bool:
        return not this_rank().alone

    def _that_fit(self) -> int:
        """How many steps fit into the limit, by the shortest so far; every rank gets rank 0's number."""
        if self._settings.at_most_s is None or not ranks_can_talk():
            return sys.maxsize
        current_clock().synchronize()
        shortest_ns = min((clock.between_ns(start, end) for _, clock, start, end, _ in self._rows), default=1)
        return from_rank_0(int(self._settings.at_most_s * 1e9 / max(shortest_ns, 1)), "steps_that_fit")


def _rows(rows: Sequence[_Row]) -> list[MeasuredStep]:
    """The steps as they are recorded; a step's loss is the sum of its losses, None if it has none."""
    return [
        MeasuredStep(
            phase=phase,
            step_ns=clock.between_ns(start, end),
            loss=sum(float(loss) for loss in step.losses) if step.losses else None,
            backwards=step.backwards,
            batches=step.batches,
            samples=step.samples,
            wait_ns=step.wait_ns,
            skipped=step.skipped,
            new_leader=step.new_leader,
        )
        for phase, clock, start, end, step in rows
    ]


def _nvml() -> Any:
    """A sampler of the GPU in use; None where there is none, or its package is missing in the program's environment."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return nullcontext()
    try:
        from steptrace.engine.nvml import NvmlSampler
    except ImportError:
        return nullcontext()
    return NvmlSampler(torch.device("cuda", torch.cuda.current_device()))
