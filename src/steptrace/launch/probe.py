"""Inside the program: counts its steps, runs the mode's phases, then ends the program.

Each mode is a generator that waits for the end of the next step at every `yield`. Errors in it never reach the program:
they are recorded, and the program runs on without the probe. In mode `capture` no error of steptrace does, wherever it
is raised.
"""

import atexit
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import steptrace
from steptrace.engine.device import process_record
from steptrace.engine.frames import contained_fault, hook_fault, is_of_signal_handler
from steptrace.engine.measure import Phases
from steptrace.engine.rank_record import State, plain_record
from steptrace.engine.steps import Step, StepFinder
from steptrace.files import write_bytes
from steptrace.launch.hooks import Hooks
from steptrace.launch.settings import FAULT, PROGRESS, LaunchSettings
from steptrace.rank import this_rank

#: Seconds between two looks at the main thread, and those that other threads have to end behind it.
_LOOK_S: Final = 0.2
_OTHERS_END_S: Final = 5.0
#: Seconds between two updates of the progress.
_REPORT_S: Final = 1.0


class MeasuredEnd(SystemExit):
    """Ends the program at a step's end: a clean exit, so that `finally`, `atexit` and a framework's teardown run."""


class Probe:
    """One process's part of a launch. `record`, by the names of `RankRecord`, is written to a file at the end.

    Args:
        settings: the launch's settings.
        phases: the mode's generator; it fills `record`, and may use `finder` and `hooks`.
    """

    def __init__(self, settings: LaunchSettings, phases: "Callable[[Probe], Phases]") -> None:
        self.settings = settings
        self.record: dict[str, Any] = {}
        self.finder = StepFinder(self._step_ended)
        self.hooks = Hooks(self.finder)
        if settings.mode == "capture":  # the program is not ours to end
            self.hooks.contain = self._contain
        self.steps = 0
        #: What to report of an error, None where it is the program's own.
        self.fault_of: Callable[[BaseException], str | None] = hook_fault
        self._make_phases = phases
        self._phases: Phases | None = None
        self._over = False
        self._ending = False
        self._saved = False
        self._reported = 0.0
        self._counts: dict[str, str] = {}

    def install(self) -> None:
        """Wrap PyTorch, and register for the process's end."""
        self.hooks.install()
        # Started here: a prediction must begin before the program does.
        self._phases = self._make_phases(self)
        next(self._phases)
        atexit.register(self._program_ends)
        atexit.register(self._look_at_error)
        os.register_at_fork(after_in_child=self._forked)
        steptrace.on_step = partial(self.hooks.tell, self.finder.step_marked)

    def _step_ended(self, step: Step) -> None:
        if self._ending:  # the program has caught the exception that ends it
            _flush()
            os._exit(0)
        if self._over or self._phases is None:
            return
        self.steps += 1
        if self.steps == 1:
            self.mark("stepped")
        if self.hooks.contain is not None:
            self._phases.send(step)  # an error reaches `_contain`
            return
        try:
            self._phases.send(step)
            return
        except StopIteration:
            self._leave("complete")
        except Exception:
            self._leave("failed", traceback.format_exc())
            return
        self._ending = True
        _flush()
        if threading.current_thread() is not threading.main_thread():
            os._exit(0)  # in another thread, SystemExit would end that thread alone
        threading.Thread(target=_end_with_main_thread, name="steptrace", daemon=True).start()
        raise MeasuredEnd(0)

    def _contain(self, error: BaseException) -> None:
        """Keep an error of ours from the program, which runs on without the probe; raise it if it is the program's.

        Only a handler of a signal, which may run at any moment, can raise an error of the program's here.
        """
        if isinstance(error, KeyboardInterrupt) or is_of_signal_handler(error):
            self.hooks.off = False
            raise error
        with suppress(Exception):
            self.mark(FAULT, contained_fault(error))
        with suppress(Exception):
            if self._phases is not None:
                self._phases.close()
        with suppress(Exception):
            self._leave("failed", "".join(traceback.format_exception(error)))
        self._over = True

    def _program_ends(self) -> None:
        """The program ends before its measurement is complete: write what was measured."""
        if self._over or self._phases is None or not self.finder.optimizer_calls + self.steps:
            return
        try:
            self._phases.close()
            self._leave("partial")
        except Exception:
            self._leave("failed", traceback.format_exc())

    def _leave(self, state: State, error: str | None = None) -> None:
        self._over = True
        self.hooks.labels = False
        self.save(state, error)

    def save(self, state: State, error: str | None = None) -> None:
        """Write the record as it is now, over this process's earlier one; a complete record is never replaced."""
        self.record |= {
            "state": state,
            "error": error,
            "steps_seen": self.steps,
            "optimizers": self.finder.optimizers,
            **process_record(),
        }
        file = Path(self.settings.out) / f"rank{self.record['rank']}.json"
        if state == "complete" or self._saved or not file.exists():
            with suppress(OSError):
                write_bytes(file, json.dumps(plain_record(self.record)).encode())
                self._saved = True

    def label(self, on: bool) -> None:  # noqa: FBT001 - a switch
        """Switch the labels on the parts of a step on or off."""
        self.hooks.labels = on

    def progress(self, phase: str, done: int, total: int) -> bool:
        """Write the first rank's progress for the launcher: at both ends of a phase, else at most once a second.

        Returns:
            Whether it was due, on any rank.
        """
        now = time.monotonic()
        self._counts[phase] = f"{done}/{total}"
        if 0 < done < total and now - self._reported < _REPORT_S:
            return False
        self._reported = now
        if this_rank().rank:
            return True
        line = ", ".join(f"{name} {count}" for name, count in self._counts.items())
        with suppress(OSError):
            write_bytes(Path(self.settings.out) / PROGRESS, line.encode())
        return True

    def _look_at_error(self) -> None:
        """Tell the launcher what an error that has ended the program is due to."""
        error: BaseException | None = getattr(sys, "last_value", None)
        if error is not None and (report := self.fault_of(error)) is not None:
            self.mark(FAULT, report)

    def mark(self, what: str, text: str = "") -> None:
        """Write a file of this name for the launcher."""
        try:
            (Path(self.settings.out) / f"{what}.{os.getpid()}").write_text(text, encoding="utf-8")
        except OSError:
            self._over = True  # the launcher has gone

    def _forked(self) -> None:
        """Start afresh in a forked child, which may be a loader's worker or a rank."""
        if self.settings.mode == "predict":
            self._over = True
            return
        self.record, self.steps, self._ending, self._saved = {}, 0, False, False
        self.finder.restart()
        self._phases = self._make_phases(self)
        next(self._phases)


def install(settings: dict[str, Any]) -> None:
    """Put the probe into this process, as `sitecustomize` does once PyTorch is imported."""
    chosen = LaunchSettings(**settings)
    if chosen.mode == "predict":  # alone has the virtual device
        from steptrace.launch.predict import predict as phases
    else:
        from steptrace.launch import modes

        phases = {"measure": modes.measure, "capture": modes.capture, "outputs": modes.record_outputs}[chosen.mode]
    Probe(chosen, phases).install()


def _end_with_main_thread() -> None:
    """End the process some seconds after its main thread if Python waits for others that may never end.

    One that fills a queue does not: nobody takes anything any longer, since the program was ended early.
    """
    while threading.main_thread().is_alive():
        time.sleep(_LOOK_S)
    time.sleep(_OTHERS_END_S)
    if any(not thread.daemon for thread in threading.enumerate() if thread.is_alive()):
        _flush()
        os._exit(0)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
