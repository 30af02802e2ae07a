"""Records some steps under the profiler: writes their trace, and capture.json beside it.

Used by `steptrace run` and `steptrace capture`. Needs PyTorch and the standard library only; PyTorch is imported when
the first recording begins.
"""

import contextlib
import gc
import json
import logging
import os
import platform
import socket
import statistics
import sys
import warnings
from collections.abc import Callable, Generator, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from steptrace.documents.compilations import Compilations
from steptrace.engine.gloo import wait_for_gloo
from steptrace.engine.signals import pass_on
from steptrace.errors import CaptureError
from steptrace.files import write_bytes
from steptrace.rank import Rank, this_rank
from steptrace.trace.written import export
from steptrace.version import VERSION

_LOG: Final = logging.getLogger("steptrace.capture")
#: The final states of a recording with a trace, and all final states.
WITH_TRACE: Final = ("recorded", "partial")
FINAL: Final = (*WITH_TRACE, "refused", "failed")
#: The most steps of a recording, which keeps all of its events in memory.
_MOST_STEPS: Final = 100_000


def check_types(record: Any) -> None:
    """Raise `CaptureError` unless each field of a dataclass has exactly the type that it is declared with.

    Another process has written these values. A wrong one must not become a TypeError in the training.
    """
    for field in fields(record):
        value = getattr(record, field.name)
        if type(value) is not field.type and not (field.type is float and type(value) is int):
            expected = getattr(field.type, "__name__", str(field.type))
            raise CaptureError(f"is {type(value).__name__}", where=field.name, expected=expected)


@dataclass(frozen=True)
class RecordingSettings:
    """What to record.

    Args:
        steps: number of steps to record.
        warmup: number of steps before them with the profiler on. Their events are discarded, since the first steps
            under the profiler are slow.
        stacks: whether to record Python frames; without them a sync has no source line.
        shapes: whether to record sizes and types of the operators' tensors.
        memory: whether to record allocations and releases.

    Example:
        RecordingSettings(steps=5, memory=False)
    """

    steps: int = 3
    warmup: int = 2
    stacks: bool = True
    shapes: bool = True
    memory: bool = True

    def __post_init__(self) -> None:
        check_types(self)
        for name, value, least in (("steps", self.steps, 1), ("warmup", self.warmup, 0)):
            if not least <= value <= _MOST_STEPS:
                expected = f"{least} to {_MOST_STEPS}"
                raise CaptureError(f"invalid number of steps: {value}", where=name, expected=expected)


@dataclass(frozen=True)
class Request:
    """A request for a recording, whose warm-up begins at once."""

    id: str
    folder: str
    settings: RecordingSettings

    def __post_init__(self) -> None:
        check_types(self)

    def files(self, rank: Rank) -> tuple[Path, Path]:
        """The paths of a rank's trace and record: `trace.json.gz` and `capture.json`, with `.rank1` from rank 1 on."""
        which = f".rank{rank.rank}" if rank.rank else ""
        return Path(self.folder) / f"trace{which}.json.gz", Path(self.folder) / f"capture{which}.json"


@dataclass(frozen=True)
class Before:
    """The unprofiled steps before a recording.

    Attributes:
        step_ns: the times of the last steps before the recording.
        operators: the number of operators in each step just before those of `step_ns`; empty if not counted.
        left_out: number of steps between those of `step_ns` and the recording's warm-up.
        wait_ns: the host's wait for data in each step of `step_ns`; empty if no DataLoader was seen.
    """

    step_ns: Sequence[int] = ()
    operators: Sequence[int] = ()
    left_out: int = 0
    wait_ns: Sequence[int] = ()


class Recording:
    """Records some steps of a training under the profiler. Errors end the recording and do not reach the training.

    `state` is `waiting` or `recording`, and at the end one of `FINAL`; `message` explains it.

    Args:
        request: what to record.
        before: returns the steps before the warm-up, for the record.
        compiled: returns the code that was compiled so far, for the record; None if none was.

    Example:
        recording = Recording(Request("1", "captures/one", RecordingSettings(steps=3, warmup=2)))
        for number, batch in enumerate(loader):
            recording.step(number)
            if recording.done:
                break
            train_step(batch)
    """

    def __init__(
        self,
        request: Request,
        before: Callable[[], Before] = Before,
        compiled: Callable[[], Compilations | None] = lambda: None,
    ) -> None:
        self._compiled = compiled
        self._rank = this_rank()
        self.trace, self._record_file = request.files(self._rank)
        self._request = request
        self._before = before
        self._asked_at = _now()
        self._unprofiled: dict[str, Any] | None = None
        self._profiler: Any = None
        self._label = contextlib.ExitStack()
        self._started = False
        self._first = 0
        self._over = 0
        self.state = "waiting"
        self.message = ""

    @property
    def done(self) -> bool:
        """Whether the recording is over."""
        return self.state in FINAL

    @property
    def count(self) -> int:
        """Number of whole steps recorded so far."""
        return max(self._over - self._first, 0) if self._started else 0

    def step(self, over: int) -> None:
        """Call this at the end of each step, and once before the first; `over`: number of steps that have ended."""
        with self._ending_with_errors():
            import torch

            self._label.close()
            if self._profiler is None:
                self._prepare(over)
            self._over = over
            if self.count == self._request.settings.steps:
                self._finish()
            elif over >= self._first:
                if not self._started:
                    if profiler_is_on():
                        raise CaptureError("another profiler was started during the warm-up")
                    _quietly(self._profiler.start_trace)
                    self._started = True
                self._label.enter_context(torch.profiler.record_function(f"ProfilerStep#{over}"))

    def close(self, why: str = "the training ended before a step was recorded") -> None:
        """End early, with the steps recorded so far; `why` becomes the message if there are none."""
        with self._ending_with_errors():
            if not self.done:
                self._finish(why)

    @contextlib.contextmanager
    def _ending_with_errors(self) -> Generator[None]:
        """End the recording at an error, with the error as its message."""
        try:
            yield
        except Exception as error:
            with contextlib.suppress(Exception):
                self._stop()
            if isinstance(error, CaptureError):
                self._end("refused", error.what)
            else:
                _LOG.warning("capture: %s", error, exc_info=error)
                self._end("failed", f"{type(error).__name__}: {error}")
            pass_on(error)

    def _prepare(self, over: int) -> None:
        """Begin the warm-up."""
        import torch
        from torch.profiler import ProfilerActivity, profile

        settings = self._request.settings
        if self.trace.exists():
            raise CaptureError("a trace exists already", where=self.trace, next_step="name another folder")
        refuse_other_profilers(settings.warmup + settings.steps)
        self.trace.parent.mkdir(parents=True, exist_ok=True)
        before = self._before()
        if times := list(before.step_ns):
            median = round(statistics.median(times))
            load = os.getloadavg()[0]
            self._unprofiled = {
                "median_ns": median, "step_ns": times, "load_average": load, "cpus": os.cpu_count(),
                "operators": list(before.operators), "until_recorded": before.left_out + settings.warmup,
                "wait_ns": list(before.wait_ns),
            }  # fmt: skip
        # The profiler must not initialise CUDA in a training that does not use a GPU.
        gpu = [ProfilerActivity.CUDA] if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
        self._profiler = profile(
            activities=[ProfilerActivity.CPU, *gpu],
            record_shapes=settings.shapes,
            profile_memory=settings.memory,
            with_stack=settings.stacks,
        )
        _quietly(self._profiler.prepare_trace)
        self._first = over + settings.warmup
        self.state = "recording"
        self.message = f"steps {self._first} to {self._first + settings.steps - 1}"

    def _stop(self) -> None:
        """Switch the profiler off, unless another profiler is on instead."""
        self._label.close()
        if self._profiler is not None and self._started == profiler_is_on():
            if not self._started:  # a prepared profiler must be started before it can stop
                _quietly(self._profiler.start_trace)
            wait_for_gloo()
            _quietly(self._profiler.stop_trace)

    def _finish(self, why: str = "") -> None:
        """Stop, and write the trace; fewer steps than requested make the recording `partial`, none `refused`."""
        self._stop()
        count = self.count
        asked = self._request.settings.steps
        if count == 0:
            self._end("refused", why)
            return
        unfinished = None if count == asked else f"ProfilerStep#{self._over}"
        _quietly(lambda: export(self._profiler, self.trace, unfinished=unfinished))
        if count == asked:
            self._end("recorded", f"steps {self._first} to {self._over - 1}")
        else:
            self._end("partial", f"the training ended after {count} of {asked} steps; these are written")

    def _end(self, state: str, message: str) -> None:
        self.state = state
        self.message = message
        (_LOG.info if state in WITH_TRACE else _LOG.warning)("capture %s: %s: %s", state, self.trace, message)
        try:
            # A recording without a trace must not replace the record of an earlier one that has a trace.
            if state in WITH_TRACE or not self._record_file.exists():
                self._record_file.parent.mkdir(parents=True, exist_ok=True)
                record = self._record(self.count if state in WITH_TRACE else 0)
                text = json.dumps(record, indent=2, ensure_ascii=False) + "\n"
                write_bytes(self._record_file, text.encode(errors="replace"))
        except Exception as error:  # includes PyTorch's error if the name of a failed GPU cannot be read
            _LOG.warning("%s was not written: %s", self._record_file, error)

    def _record(self, count: int) -> dict[str, Any]:
        """The content of capture.json for a trace of `count` steps: what was recorded, or why nothing was."""
        torch: Any = sys.modules.get("torch")
        first, last = (self._first, self._first + count - 1) if count else (None, None)
        return {
            "schema_version": 1, "state": self.state, "message": self.message, "request": self._request.id,
            "trace": self.trace.name if count else None, "trace_bytes": self.trace.stat().st_size if count else None,
            "steps": {"first": first, "last": last, "count": count}, "unprofiled": self._unprofiled,
            "compiled": None if (compiled := self._compiled()) is None else asdict(compiled),
            "asked": asdict(self._request.settings),
            "started_at": self._asked_at, "ended_at": _now(),
            "pid": os.getpid(), "host": socket.gethostname(), "command": sys.orig_argv,
            **asdict(self._rank),
            "device": str(torch.cuda.get_device_name()) if torch and torch.cuda.is_initialized() else None,
            "python": platform.python_version(), "torch": str(torch.__version__) if torch else None,
            "steptrace": VERSION,
        }  # fmt: skip


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _quietly(call: Callable[[], object]) -> None:
    """Call a function without the profiler's warnings, which the training might turn into errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        call()


def profiler_is_on() -> bool:
    """Whether any profiler records on this thread."""
    import torch

    return bool(torch.autograd._profiler_enabled())  # type: ignore[attr-defined]


def refuse_other_profilers(steps: int) -> None:
    """Raise `CaptureError` if another profiler records, or will within the next `steps` steps.

    PyTorch allows only one profiler at a time, so the program's own would fail to start.
    """
    from torch.profiler import ProfilerAction, profile

    if profiler_is_on():
        raise CaptureError("a profiler is already recording in this process")
    for other in gc.get_objects():
        # type() instead of isinstance(), which may run code of the object.
        if issubclass(type(other), profile) and other.record_steps and other.step_rec_fn is not None:
            ahead = (other.schedule(other.step_num + i) for i in range(steps + 1))
            if any(action != ProfilerAction.NONE for action in (other.current_action, *ahead)):
                raise CaptureError(f"a torch.profiler.profile of this program records within the next {steps} steps")
