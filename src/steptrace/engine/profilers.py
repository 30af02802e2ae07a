"""PyTorch's profilers: whether another one is on, or soon will be."""

import gc

from steptrace.errors import CaptureError


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
