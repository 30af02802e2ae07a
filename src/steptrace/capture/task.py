"""A request under way: it waits for its step, records, and leaves a trace with a record beside it, or says why not.

Nothing here raises: what goes wrong ends the task, is logged, and is told to whoever asked.
"""

import logging
import os
import platform
import sys
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

import steptrace
from steptrace.capture import identity
from steptrace.capture.control import Entry
from steptrace.capture.plan import BY_SIGNAL, Answer, Record, Request, Span, file_names
from steptrace.errors import CaptureError, SteptraceError
from steptrace.record import write_json

if TYPE_CHECKING:
    from steptrace.capture.recording import Recording

_LOG: Final = logging.getLogger("steptrace.capture")
_NOTHING: Final = Span(None, None, 0)


class Task:
    """One request.

    Args:
        request: what is asked.
        place: this process's rank.
        entry: where to answer; None if nobody reads answers.
        step: the number of the step that begins now.
    """

    def __init__(self, request: Request, place: identity.Place, entry: Entry | None, step: int) -> None:
        trace, record = file_names(place.rank, place.world_size)
        self._request = request
        self._place = place
        self._entry = entry
        self._trace = Path(request.folder) / trace
        self._record_file = Path(request.folder) / record
        self._started_at = _now()
        self._recording: Recording | None = None
        self.done = False
        if request.start is not None and step < request.start:
            self._answer("waiting", f"begins at step {request.start}")
        else:
            self._begin(step)

    @property
    def is_recording(self) -> bool:
        """Whether the profiler is on, be it for the warm-up."""
        return self._recording is not None

    def step(self, step: int) -> None:
        """A step has ended, and `step` is the number of the next."""
        if self._recording is None:
            self._begin(step)
            return
        try:
            self._recording.step()
        except Exception as error:
            self._fail(error)
            return
        if self._recording.complete:
            self._write(self._recording)

    def close(self) -> None:
        """The training ends: write what has been recorded."""
        if self._recording is None:
            self._end("refused", "the training ended before the step to begin at", _NOTHING)
        else:
            self._write(self._recording)

    def _begin(self, step: int) -> None:
        start, settings = self._request.start, self._request.settings
        if start is not None and step < start:
            return
        try:
            if start is not None and step > start:
                raise CaptureError(f"step {start}, which was agreed on, was over when the request was seen")
            from steptrace.capture.recording import Recording, quietly

            with quietly():
                self._recording = Recording(self._trace, settings, step)
        except Exception as error:
            self._fail(error)
            return
        first = step + settings.warmup
        self._answer("recording", f"steps {first} to {first + settings.steps - 1}")

    def _write(self, recording: "Recording") -> None:
        """Stop, and write the steps that there are: all, some if the training ends, or none."""
        from steptrace.capture.recording import quietly

        span = recording.span
        try:
            with quietly():
                recording.write()
        except Exception as error:
            self._fail(error)
            return
        if recording.complete:
            self._end("recorded", f"steps {span.first} to {span.last}", span)
        elif span.count:
            asked = self._request.settings.steps
            self._end("partial", f"the training ended after {span.count} of {asked} steps; these are written", span)
        else:
            self._end("refused", "the training ended before a step was recorded", span)

    def _fail(self, error: Exception) -> None:
        """End a capture that could not be made; the profiler is switched off if it is ours."""
        if self._recording is not None:
            with suppress(Exception):
                self._recording.stop()
        foreseen = isinstance(error, CaptureError)
        _LOG.warning("no capture: %s", error, exc_info=None if foreseen else error)
        message = error.what if isinstance(error, CaptureError) else f"{type(error).__name__}: {error}"
        self._end("refused" if foreseen else "failed", message, _NOTHING)

    def _end(self, state: str, message: str, span: Span) -> None:
        self._recording, self.done = None, True
        written = state in ("recorded", "partial")
        try:
            # Without a trace of its own it must not replace the record of an earlier one.
            if written or not self._record_file.exists():
                write_json(self._record_file, msgspec.to_builtins(self._record(state, message, span)))
        except Exception as error:  # PyTorch's too: a GPU that has failed cannot say its name
            _LOG.warning("%s was not written: %s", self._record_file, error)
        if written:
            _LOG.info("%s: %s", self._trace, message)
        self._answer(state, message)

    def _record(self, state: str, message: str, span: Span) -> Record:
        torch: Any = sys.modules.get("torch")
        written = state in ("recorded", "partial")
        return Record(
            schema_version=1,
            state=state,
            message=message,
            trace=self._trace.name if written else None,
            trace_bytes=self._trace.stat().st_size if written else None,
            steps=span,
            asked=self._request.settings,
            asked_by=self._request.asked_by,
            started_at=self._started_at,
            ended_at=_now(),
            pid=os.getpid(),
            host=identity.host(),
            rank=self._place.rank,
            world_size=self._place.world_size,
            command=identity.command_line(),
            device=str(torch.cuda.get_device_name()) if torch and torch.cuda.is_initialized() else None,
            python=platform.python_version(),
            torch=str(torch.__version__) if torch else None,
            steptrace=steptrace.__version__,
        )

    def _answer(self, state: str, message: str) -> None:
        if self._entry is None or self._request.asked_by == BY_SIGNAL:
            return
        trace = str(self._trace) if state in ("recorded", "partial") else None
        try:
            self._entry.answer(Answer(self._request.id, state, message, trace))
        except (OSError, SteptraceError) as error:
            _LOG.warning("an answer was not written: %s", error)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
