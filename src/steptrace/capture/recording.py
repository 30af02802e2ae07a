"""One capture: warm-up steps, recorded steps, and the trace they leave. The only module here that imports torch."""

import contextlib
import gc
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import torch
from torch.profiler import ProfilerAction, ProfilerActivity, profile, record_function

from steptrace.capture.plan import Settings, Span
from steptrace.errors import CaptureError
from steptrace.trace.written import put_in_place


class Recording:
    """A profiler that is moved on by the training's steps.

    Args:
        trace: the file to write.
        settings: what to record.
        step: the number of the step that begins now.

    Raises:
        CaptureError: the file is there already, or another profiler is in the way.
    """

    def __init__(self, trace: Path, settings: Settings, step: int) -> None:
        if trace.exists():
            raise CaptureError("there is a trace already", where=trace, next_step="name another folder")
        _refuse_company(settings.warmup + settings.steps)
        trace.parent.mkdir(parents=True, exist_ok=True)
        self.trace = trace
        self._settings = settings
        self._first = step + settings.warmup
        self._step = step
        self._label: record_function | None = None
        self._started = False
        activities = [ProfilerActivity.CPU]
        # A job that does not use its GPU is not made to.
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            activities.append(ProfilerActivity.CUDA)
        self._profiler = profile(
            activities=activities,
            record_shapes=settings.shapes,
            profile_memory=settings.memory,
            with_stack=settings.stacks,
        )
        self._profiler.prepare_trace()
        self._begin_step()

    @property
    def span(self) -> Span:
        """The whole steps recorded so far."""
        count = max(self._step - self._first, 0) if self._started else 0
        return Span(self._first, self._first + count - 1, count) if count else Span(None, None, 0)

    @property
    def complete(self) -> bool:
        """Whether all steps asked for are recorded."""
        return self.span.count == self._settings.steps

    def step(self) -> None:
        """A step has ended.

        Raises:
            CaptureError: another profiler was started during the warm-up.
        """
        self._end_label()
        self._step += 1
        if not self.complete:
            self._begin_step()

    def write(self) -> None:
        """Stop and write the trace; if there are no whole steps yet, only stop.

        Raises:
            OSError, RuntimeError: it cannot be written.
        """
        unfinished = f"ProfilerStep#{self._step}" if self._label is not None else None
        self.stop()
        if self.span.count == 0:
            return
        # A folder of its own hides the unfinished files from whoever reads the folder meanwhile.
        partial = self.trace.parent / f".partial-{os.getpid()}"
        partial.mkdir(exist_ok=True)
        try:
            plain = partial / self.trace.name.removesuffix(".gz")
            self._profiler.export_chrome_trace(str(plain))
            put_in_place(plain, self.trace, unfinished=unfinished)
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def stop(self) -> None:
        """Switch the profiler off."""
        self._end_label()
        with quietly():
            if self._started and _is_recording():
                self._profiler.stop_trace()
            elif not self._started and not _is_recording():
                # What is prepared can only be undone by starting it.
                self._profiler.start_trace()
                self._profiler.stop_trace()

    def _begin_step(self) -> None:
        if self._step < self._first:
            return
        if not self._started:
            if _is_recording():
                raise CaptureError("another profiler was started during the warm-up", next_step="ask again later")
            with quietly():
                self._profiler.start_trace()
            self._started = True
        self._label = record_function(f"ProfilerStep#{self._step}")
        self._label.__enter__()  # type: ignore[no-untyped-call]

    def _end_label(self) -> None:
        label, self._label = self._label, None
        if label is not None:
            label.__exit__(None, None, None)


def _is_recording() -> bool:
    """Whether a profiler, whoever's, records on this thread."""
    return bool(torch.autograd._profiler_enabled())  # type: ignore[attr-defined]


def _refuse_company(steps: int) -> None:
    """Refuse where another profiler records, or will within `steps`: PyTorch has one, and its second start raises.

    That error would hit the training's own call, so it has to be foreseen.
    """
    if _is_recording():
        raise CaptureError("a profiler is already recording in this process", next_step="ask again when it is done")
    for other in _profilers_with_schedule():
        ahead = (other.schedule(other.step_num + i) for i in range(steps + 1))
        if any(action != ProfilerAction.NONE for action in (other.current_action, *ahead)):
            raise CaptureError(
                f"a torch.profiler.profile of this program records within the next {steps} steps",
                next_step="ask again when it is done",
            )


def _profilers_with_schedule() -> Iterator[profile]:
    for thing in gc.get_objects():
        # type() and not isinstance(), which may run code of the object's own.
        if issubclass(type(thing), profile) and thing.record_steps and thing.step_rec_fn is not None:
            yield thing


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """PyTorch's warnings of a profiler are no business of the training, where they might be errors."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
