"""Inside the program: counts its steps, runs the mode's phases, then ends the program.

Each mode is a generator that waits at every `yield` for the end of the next step. An error in it does not reach the
program: it is recorded, and the program runs on without the probe. In mode `capture` this holds for any error of
steptrace, wherever it is raised.
"""

import atexit
import inspect
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
from steptrace.engine import compilations
from steptrace.engine import session as sessions
from steptrace.engine.frames import contained_fault, hook_fault
from steptrace.engine.process_facts import process_record
from steptrace.engine.rank_record import State, plain_record
from steptrace.engine.session import Phases, Session
from steptrace.engine.signals import is_of_signal_handler
from steptrace.engine.steps import Step, StepFinder
from steptrace.files import write_bytes
from steptrace.launch.events import Event, Fault, ProbeFailed, Progressed, RecordWritten, Stepped, append
from steptrace.launch.hooks import Hooks
from steptrace.launch.settings import LaunchSettings
from steptrace.rank import this_rank

#: Seconds between two looks at the main thread.
_LOOK_S: Final = 0.2
#: Seconds that other threads get to end after the main thread.
_OTHERS_END_S: Final = 5.0
#: Seconds between two updates of the progress.
_REPORT_S: Final = 1.0


class MeasuredEnd(SystemExit):
    """Ends the program at the end of a step, as `sys.exit` does: `finally`, `atexit` and a framework's teardown run."""


class Probe:
    """The probe of one process. It collects `record`, by the names of `RankRecord`, and writes it to a file at the end.

    Args:
        settings: the launch's settings.
        phases: the mode's generator; it fills `record`, and may use `finder` and `hooks`.
    """

    def __init__(self, settings: LaunchSettings, phases: "Callable[[Probe], Phases]") -> None:
        self.settings = settings
        self.record: dict[str, Any] = {}
        self.finder = StepFinder(self._step_ended)
        self.hooks = Hooks(self.finder)
        if settings.mode == "capture":  # an error of ours must not end the program
            self.hooks.contain = self._contain
        self.steps = 0
        #: The session that the program can join; None in a mode without one.
        self.session: Session | None = None
        #: Called when the program joins the session, which is when its first step begins.
        self.on_begin: Callable[[], None] = lambda: None
        #: Returns the report on an error of steptrace, and None for one of the program's own.
        self.fault_of: Callable[[BaseException], str | None] = hook_fault
        self._make_phases = phases
        self._phases: Phases | None = None
        self._over = False
        self._ending = False
        self._saved = False
        self._reported = 0.0

    def install(self) -> None:
        """Wrap PyTorch's functions, begin the mode, and register for the end of the process."""
        self.hooks.install()
        if self.settings.mode != "predict":  # a prediction runs compiled code as it is written
            compilations.watch(self.hooks.keep_from_dynamo)
        self._begin_phases()  # now, since a prediction must begin before the program does
        atexit.register(self._program_ends)
        atexit.register(self._look_at_error)
        os.register_at_fork(after_in_child=self._forked)
        steptrace.on_step = partial(self.hooks.tell, self.finder.step_marked)

    def _begin_phases(self) -> None:
        self._phases = self._make_phases(self)
        next(self._phases)

    def open_session(self, *, explains: bool) -> Session:
        """Open and return the session that the program can join; `explains`: whether steps are profiled and watched."""
        self.session = Session(
            explains=explains, begin=self._program_joins, step_ended=self._step_ended, step_failed=self._step_failed
        )
        sessions.current = self.session
        return self.session

    def _program_joins(self) -> None:
        self.hooks.off = True  # the program reports its steps itself
        self.on_begin()

    def _step_failed(self, error: Exception) -> None:
        """A step of a program that has joined has raised. Watched steps go on; any other error is raised again."""
        if self._over or self._phases is None:
            raise error
        try:
            self._phases.throw(error)
        except StopIteration:
            self._complete()
        except BaseException:
            self._over = True
            raise

    def _step_ended(self, step: Step) -> None:
        if self._ending:  # the program has caught `MeasuredEnd` and runs on
            _flush()
            os._exit(0)
        if self._over or self._phases is None:
            return
        self.steps += 1
        if self.steps == 1:
            self.tell(Stepped())
        if self.hooks.contain is not None:
            self._phases.send(step)  # an error reaches `_contain`
            return
        try:
            self._phases.send(step)
        except StopIteration:
            self._complete()
        except BaseException as error:
            if self.session is not None and error is self.session.error:  # the program's own pass has failed
                self._over = True
                raise
            if not isinstance(error, Exception) or _is_of_the_program(error):
                self._leave("partial")
                raise
            self._leave("failed", traceback.format_exc())

    def _complete(self) -> None:
        """Write the record and end the program. A program that has joined the session ends by itself."""
        is_written = self._leave("complete")
        if not is_written or (self.session is not None and self.session.joined):
            return
        self._ending = True
        _flush()
        if threading.current_thread() is not threading.main_thread():
            os._exit(0)  # in another thread, SystemExit would end only that thread
        threading.Thread(target=_end_with_main_thread, name="steptrace", daemon=True).start()
        raise MeasuredEnd(0)

    def _contain(self, error: BaseException) -> None:
        """Keep an error of ours from the program, which runs on without the probe. Raise the program's own again.

        The program's own code runs here only in signal handlers, which may run at any moment.
        """
        if _is_of_the_program(error):
            self.hooks.off = False
            if self._phases is not None and inspect.getgeneratorstate(self._phases) == inspect.GEN_CLOSED:
                self._begin_phases()  # the error has closed the generator
            raise error
        self._over = True
        with suppress(Exception):
            self.tell(Fault(contained_fault(error)))
        with suppress(Exception):
            if self._phases is not None:
                self._phases.close()
        with suppress(Exception):
            self._leave("failed", "".join(traceback.format_exception(error)))

    def _program_ends(self) -> None:
        """The program ends: if its measurement is not complete, write what was measured so far."""
        if self._over or self._phases is None or not self.finder.optimizer_calls + self.steps:
            return
        if self.session is not None and self.session.joined:  # such a run counts only if it is complete
            return
        try:
            self._phases.close()
        except Exception:
            self._leave("failed", traceback.format_exc())
        else:
            self._leave("partial")

    def _leave(self, state: State, error: str | None = None) -> bool:
        """End the measurement and write the record; return whether that worked."""
        self._over = True
        self.hooks.labels = False
        if self.session is not None:
            self.session.is_over = True
        try:
            self.save(state, error)
        except Exception:  # the program must go on
            self.tell(ProbeFailed(error or traceback.format_exc()))
            return False
        return True

    def save(self, state: State, error: str | None = None) -> None:
        """Write the record as it is now, over an earlier one of this process. A complete record is never replaced."""
        self.record |= {
            "state": state,
            "error": error,
            "steps_seen": self.steps,
            "optimizers": self.finder.optimizers,
            "compiled": compilations.LOG.record(),
            **process_record(),
        }
        file = Path(self.settings.out) / f"rank{self.record['rank']}.json"
        if state == "complete" or self._saved or not file.exists():
            with suppress(OSError):
                write_bytes(file, json.dumps(plain_record(self.record)).encode())
                self._saved = True
                append(Path(self.settings.out), RecordWritten(self.record["rank"], self.record["world_size"], state))

    def label(self, on: bool) -> None:  # noqa: FBT001 - a switch
        """Switch the labels on the parts of a step on or off. A program that has joined sets labels itself."""
        self.hooks.labels = on and not (self.session is not None and self.session.joined)

    def progress(self, phase: str, done: int, total: int | None) -> bool:
        """Report rank 0's progress to the launcher: at the start and end of a phase, and once a second in between.

        Args:
            phase: name of the phase.
            done: steps of it that are over.
            total: steps of the phase; None as long as their number is not known.

        Returns:
            Whether it was time for a report; also on other ranks, which report nothing.
        """
        now = time.monotonic()
        within = done > 0 and (total is None or done < total)
        if within and now - self._reported < _REPORT_S:
            return False
        self._reported = now
        if this_rank().rank == 0:
            with suppress(OSError):
                append(Path(self.settings.out), Progressed(phase, done, total))
        return True

    def _look_at_error(self) -> None:
        """If an error of steptrace has ended the program, send the report on it to the launcher."""
        error: BaseException | None = getattr(sys, "last_value", None)
        if error is not None and (report := self.fault_of(error)) is not None:
            self.tell(Fault(report))

    def tell(self, event: Event) -> None:
        """Send an event to the launcher. If that fails, the launcher has ended, and so does the measurement."""
        try:
            append(Path(self.settings.out), event)
        except OSError:
            self._over = True

    def _forked(self) -> None:
        """Start anew in a forked child, which may be a loader's worker or another rank."""
        if self.settings.mode == "predict":
            self._over = True
            return
        self.record = {}
        self.steps = 0
        self._ending = False
        self._saved = False
        self.finder.restart()
        self._begin_phases()


def _end_with_main_thread() -> None:
    """End the process some seconds after its main thread, if Python then waits for threads that may never end.

    A thread that fills a queue never ends, since the program was ended early and takes nothing from the queue.
    """
    while threading.main_thread().is_alive():
        time.sleep(_LOOK_S)
    time.sleep(_OTHERS_END_S)
    if any(not thread.daemon for thread in threading.enumerate() if thread.is_alive()):
        _flush()
        os._exit(0)


def _is_of_the_program(error: BaseException) -> bool:
    """Whether an error that was raised in our code is the program's: by Ctrl-C, or by one of its signal handlers."""
    try:
        return isinstance(error, KeyboardInterrupt) or is_of_signal_handler(error)
    except Exception:  # the stack or the memory is exhausted
        return False


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
