"""The virtual device's registration with PyTorch: once per process, and inert while no prediction is active.

PyTorch has one spare backend, PrivateUse1, and one (experimental) way to implement it in Python. Registering cannot be
undone. A process that trains on real GPUs had better predict in another one: PyTorch prefers a registered PrivateUse1
backend over CUDA where it asks for "the" accelerator.
"""

import struct
import threading
from functools import cache
from types import SimpleNamespace
from typing import Any, Final

import torch
from torch.utils import backend_registration

from steptrace.errors import PredictError

#: The device type behind "cuda" during a prediction.
DEVICE_TYPE = "steptrace_vcuda"

_lock = threading.Lock()
_active = False


@cache
def device(index: int = 0) -> torch.device:
    """A virtual device."""
    return torch.device(DEVICE_TYPE, index)


def set_active(active: bool) -> None:  # noqa: FBT001 - a setter
    """Say whether the device is there (`is_available`)."""
    global _active
    _active = active


def rng_state(_device: object = None) -> torch.Tensor:
    """A state as CUDA's generators have it, seed and offset; numbers are drawn by the CPU's, whose state is its own."""
    return torch.tensor(list(struct.pack("<QQ", torch.initial_seed() % 2**64, 0)), dtype=torch.uint8)


def _nothing(*_: object) -> None:
    return None


#: What PyTorch asks of `torch.<backend>`. Seeds and states of generators are the CPU's, which does the work.
_MODULE = SimpleNamespace(
    is_initialized=lambda: True,
    is_available=lambda: _active,
    current_device=lambda: 0,
    device_count=lambda: int(_active),
    _is_in_bad_fork=lambda: False,
    get_rng_state=rng_state,
    get_amp_supported_dtype=lambda: [torch.float16, torch.bfloat16],
    **dict.fromkeys(("set_device", "manual_seed_all", "set_rng_state", "synchronize", "current_stream"), _nothing),
)


class _Hooks(torch._C._acc.PrivateUse1Hooks):
    def is_available(self) -> bool:
        return _active

    def has_primary_context(self, _device: int) -> bool:
        return True

    def is_built(self) -> bool:
        return True


#: Arguments by which CPython checks a call's result against a pending error; other calls it may specialise.
_BY_NAME: Final = {"by_name": None}
#: The error that was on its way when C++ asked for the device's type.
_pending: list[BaseException] = []


class _DeviceGuard(torch._C._acc.DeviceGuard):
    def type_(self) -> Any:
        """The device's type.

        C++ also asks while an error from a hook or an operator leaves the engine of backward passes. Python still
        holds that error then, a result beside it would be a second one, and that ends the process. So it is taken.
        """
        try:
            dict(**_BY_NAME)
        except SystemError as error:  # "returned a result with an exception set"
            if error.__cause__ is not None:
                _pending.append(error.__cause__)
        return torch._C._autograd.DeviceType.PrivateUse1


class Engine:
    """PyTorch's engine of backward passes, which raises the error that `_DeviceGuard` has taken."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def run_backward(self, *args: Any, **kwargs: Any) -> Any:
        """Run a backward pass."""
        try:
            return self._engine.run_backward(*args, **kwargs)
        except SystemError:  # "returned NULL without setting an exception"
            if not _pending:
                raise
        error, _pending[:] = _pending[0], []
        raise error


def ensure_registered() -> None:
    """Register the device unless this process has done so.

    Raises:
        PredictError: another library has taken PrivateUse1, or this PyTorch cannot be extended in this way.
    """
    with _lock:
        taken = torch._C._get_privateuse1_backend_name()
        if taken == DEVICE_TYPE:
            return
        if taken != "privateuseone":
            raise PredictError(
                f"PyTorch's PrivateUse1 backend is taken by {taken!r}",
                expected="a process in which no other library registers a backend",
                next_step="predict in a process of its own: python -m steptrace.predict.main",
            )
        setup = getattr(backend_registration, "_setup_privateuseone_for_python_backend", None)
        if setup is None:
            raise PredictError(
                f"PyTorch {torch.__version__} has no backends written in Python", expected="PyTorch 2.11 or later"
            )
        setup(DEVICE_TYPE, backend_module=_MODULE, hook=_Hooks(), device_guard=_DeviceGuard())
