"""PyTorch's profilers: whether another one is on, and counting operators by the older one."""

import contextlib
import gc
import logging
from collections.abc import Generator
from typing import Any, Final

from steptrace.errors import CaptureError

_LOG: Final = logging.getLogger("steptrace.capture")


class OperatorCounter:
    """Counts the operators of whole steps by PyTorch's older profiler, which takes a step under 1 ms more.

    Unlike a dispatch mode it lets compiled code run as it is. Unlike the newer one it records on the host alone: once
    used without CUDA that one never records a GPU, and used with CUDA it slows the later steps. It stops at an error.
    """

    def __init__(self, steps: int) -> None:
        self.counts: list[int] = []
        self._is_on = False
        self._stopped = False
        with self._stopping_with_errors():
            refuse_other_profilers(steps)

    def begin(self) -> None:
        """To be called when a step begins."""
        if self._stopped or profiler_is_on():
            return
        with self._stopping_with_errors():
            from torch._C import _autograd, _profiler

            config: Any = _profiler.ProfilerConfig
            options = _profiler._ExperimentalConfig()
            _autograd._enable_profiler_legacy(config(_profiler.ProfilerState.CPU, *[False] * 5, options))
            self._is_on = True

    def end(self, *, count: bool = True) -> None:
        """To be called when it ends; without `count` it is left out."""
        if not self._is_on:
            return
        self._is_on = False
        with self._stopping_with_errors():
            from torch._C import _autograd

            events: list[list[Any]] = _autograd._disable_profiler_legacy()
            began = [event for thread in events for event in thread if event.kind() == "push"]
            if count:
                self.counts.append(sum(event.name().startswith("aten::") for event in began))

    @contextlib.contextmanager
    def _stopping_with_errors(self) -> Generator[None]:
        try:
            yield
        except Exception as error:
            _LOG.debug("operators are not counted: %s", error)
            self._stopped = True
            self.counts.clear()


def profiler_is_on() -> bool:
    """Whether any profiler records on this thread."""
    import torch

    return bool(torch.autograd._profiler_enabled())  # type: ignore[attr-defined]


def refuse_other_profilers(steps: int) -> None:
    """Raise if another profiler records, or will within `steps`: PyTorch allows only one at a time.

    Otherwise the training's own start of its profiler would fail.
    """
    from torch.profiler import ProfilerAction, profile

    if profiler_is_on():
        raise CaptureError("a profiler is already recording in this process")
    for other in gc.get_objects():
        # type() and not isinstance(), which may run code of the object's own.
        if issubclass(type(other), profile) and other.record_steps and other.step_rec_fn is not None:
            ahead = (other.schedule(other.step_num + i) for i in range(steps + 1))
            if any(action != ProfilerAction.NONE for action in (other.current_action, *ahead)):
                raise CaptureError(f"a torch.profiler.profile of this program records within the next {steps} steps")
