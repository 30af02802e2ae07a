"""The virtual devices: how a program names them, and their registration with PyTorch, inert without a prediction.

PyTorch has one spare backend, PrivateUse1, and one (experimental) way to implement it in Python. The registration
cannot be undone. Afterwards PyTorch's C++ prefers PrivateUse1 to CUDA where it asks for "the" accelerator, so a process
that trains on real GPUs should predict in another process. After a prediction Python gets the same answers as before
it, and nothing that a program can list has the backend's name.
"""

import os
import re
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from types import SimpleNamespace
from typing import Any, Final, NoReturn

import torch

from steptrace.errors import PredictError
from steptrace.estimate.driver import DriverFacts, usual_facts
from steptrace.foreign_messages import TORCH_MISSES_STREAM
from steptrace.predict.pytorch import replacing
from steptrace.torch_names import has, losses_of, missing, private

#: The device type behind "cuda" during a prediction.
DEVICE_TYPE = "steptrace_vcuda"
#: The replacements of PyTorch's attributes while a prediction is active, by owner and name.
Replacements = dict[tuple[Any, str], Any]

_CUDA_NAME: Final = re.compile(r"cuda(:\d+)?")


@cache
def device(index: int = 0) -> torch.device:
    """A virtual device."""
    return torch.device(DEVICE_TYPE, index)


class _Chosen(threading.local):
    """The GPU that this thread has chosen."""

    gpu: int | None = None


class Machine:
    """The virtual machine: its GPUs, and the current one.

    `gpus`: the number of GPUs; None for as many as the launcher's environment says. `driver`: the properties of each.
    `active`: whether they exist, which they do during a prediction.
    """

    def __init__(self) -> None:
        self.gpus: int | None = None
        self.driver = usual_facts()
        self.active = False
        self._chosen = _Chosen()
        self._is_chosen = False

    def begin(self, driver: DriverFacts | None = None) -> None:
        """Make the virtual GPUs available, with no current device chosen; `driver` holds their properties."""
        forget_accelerator()
        self.driver = driver or usual_facts()
        self.active = True
        self._is_chosen = False
        self._chosen = _Chosen()

    def end(self) -> None:
        """Take the GPUs away."""
        self.active = False
        forget_accelerator()

    @property
    def chosen(self) -> int | None:
        """The GPU of this thread; None where no thread has chosen any. A thread begins with the first one."""
        return 0 if self._chosen.gpu is None and self._is_chosen else self._chosen.gpu

    def choose(self, gpu: int) -> None:
        """Let this thread work on a GPU."""
        self._chosen.gpu = gpu
        self._is_chosen = True


machine: Final = Machine()


def device_count() -> int:
    """The number of GPUs that a rank sees: that of `machine`, but at least the number of ranks on the machine."""
    counts = (os.environ.get(name, "") for name in ("LOCAL_WORLD_SIZE", "WORLD_SIZE"))
    started = next((int(count) for count in counts if count.isdecimal() and int(count)), 1)
    return max(machine.gpus or 1, started)


def device_index() -> int:
    """The index of the current GPU: the one that the program has chosen, or the one of its rank."""
    if machine.chosen is not None:
        return machine.chosen
    rank = os.environ.get("LOCAL_RANK", "")
    return int(rank) if rank.isdecimal() and int(rank) < device_count() else 0


def index_of(device: Any) -> int:
    """The index of the GPU that a number, a name, a device or None means.

    Raises:
        RuntimeError: there is no such GPU. The message is PyTorch's.
    """
    index: int | None = device if isinstance(device, int) or device is None else torch.device(device).index
    if index and index >= device_count():
        raise RuntimeError(f"CUDA error: invalid device ordinal ({index} of {device_count()} virtual GPUs)")
    return device_index() if index is None else index


def choose_device(device: Any) -> int:
    """`torch.cuda.set_device`, by a number, a name or a device; return the GPU chosen before.

    A negative number chooses nothing.
    """
    before = device_index()
    index = index_of(device)
    if index >= 0:
        machine.choose(index)
    return before


def cuda_device(device: Any = None) -> torch.device:
    """A device as the program knows it, with its index. None means the current device."""
    return torch.device("cuda", index_of(device))


def virtual_device(value: Any) -> Any:
    """The virtual device if the value names a CUDA device; anything else as it is."""
    if isinstance(value, str) and _CUDA_NAME.fullmatch(value):
        value = torch.device(value)
    if not isinstance(value, torch.device) or value.type != "cuda":
        return value
    return device(index_of(value))


def state_of(seed: int, offset: int) -> torch.Tensor:
    """A state as CUDA's generators have it: 16 bytes on the host."""
    return torch.tensor(list(struct.pack("<Qq", seed % 2**64, offset)), dtype=torch.uint8)


def seed_and_offset(state: torch.Tensor) -> tuple[int, int]:
    """The seed and the offset in a state of a CUDA generator.

    Raises:
        RuntimeError: it is no such state. The message is PyTorch's.
    """
    if state.dtype is not torch.uint8 or state.device.type != "cpu":
        raise TypeError("RNG state must be a torch.ByteTensor")
    if state.numel() != struct.calcsize("<Qq"):
        raise RuntimeError("RNG state is wrong size")
    seed, offset = struct.unpack("<Qq", bytes(state.tolist()))
    return seed, offset


def rng_state(_device: object = None) -> torch.Tensor:
    """The state of a GPU's default generator; numbers are drawn by the CPU's, whose state is its own."""
    return state_of(torch.initial_seed(), 0)


#: The functions of `torch.<backend>` that PyTorch calls. Seeds and generators' states are the CPU's, which computes.
_MODULE = SimpleNamespace(
    is_initialized=lambda: True,
    is_available=lambda: machine.active,
    current_device=lambda: 0,
    device_count=lambda: int(machine.active),
    _is_in_bad_fork=lambda: False,
    get_rng_state=rng_state,
    get_amp_supported_dtype=lambda: [torch.float16, torch.bfloat16],
    **dict.fromkeys(
        ("set_device", "manual_seed_all", "set_rng_state", "synchronize", "current_stream"), lambda *_: None
    ),
)


_HooksBase: Any = private("torch._C._acc.PrivateUse1Hooks") or object
_GuardBase: Any = private("torch._C._acc.DeviceGuard") or object


class _Hooks(_HooksBase):  # type: ignore[misc]
    def is_available(self) -> bool:
        return machine.active

    def has_primary_context(self, _device: int) -> bool:
        return True


#: PyTorch's kinds of devices.
_DEVICE_TYPES: Final = private("torch._C._autograd.DeviceType")
#: Arguments by which CPython checks a call's result against a pending error; other calls it may specialise.
_BY_NAME: Final = {"by_name": None}
#: The error that was being raised when C++ asked for the device's type.
_pending: list[BaseException] = []


class _DeviceGuard(_GuardBase):  # type: ignore[misc]
    def type_(self) -> Any:
        """The device's type.

        C++ also calls this while an error from a hook or an operator leaves the engine of backward passes. Python still
        has that error set then, and a result beside an error would end the process. So the error is taken away here,
        and `Engine` raises it again.
        """
        try:
            dict(**_BY_NAME)
        except SystemError as error:  # "returned a result with an exception set"
            if error.__cause__ is not None:
                _pending.append(error.__cause__)
        return _DEVICE_TYPES.PrivateUse1


def as_of_cuda(error: RuntimeError) -> RuntimeError:
    """An error of PyTorch's C++ that names the device as the program does."""
    if type(error) is RuntimeError and DEVICE_TYPE in str(error):
        return RuntimeError(str(error).replace(DEVICE_TYPE, "cuda")).with_traceback(error.__traceback__)
    return error


#: Where PyTorch's Python finds its engine of backward passes.
ENGINE: Final = "torch.autograd.Variable._execution_engine"


class _WrappedEngine:
    """PyTorch's engine of backward passes. Subclasses replace `run_backward`."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


class Engine(_WrappedEngine):
    """PyTorch's engine of backward passes, which raises the error that `_DeviceGuard` has taken."""

    def run_backward(self, *args: Any, **kwargs: Any) -> Any:
        """Run a backward pass in the calling thread; the engine has no other thread, see `_without_threads`."""
        try:
            with torch.autograd.set_multithreading_enabled(False):
                return self._engine.run_backward(*args, **kwargs)
        except RuntimeError as error:
            raise as_of_cuda(error) from error.__cause__
        except SystemError:  # "returned NULL without setting an exception"
            if not _pending:
                raise
        pending = _pending[0]
        _pending[:] = []
        raise pending


class EngineAfterPrediction(_WrappedEngine):
    """PyTorch's engine of backward passes in a process with a real GPU, on which it cannot train after a prediction."""

    def run_backward(self, *args: Any, **kwargs: Any) -> Any:
        """Run a backward pass; say why one on the real GPU fails."""
        try:
            return self._engine.run_backward(*args, **kwargs)
        except RuntimeError as error:
            if TORCH_MISSES_STREAM.find(error) is None:
                raise
            raise RuntimeError(
                "after predict_syncs() a process cannot train on its GPU, since PyTorch then takes the virtual device "
                "for the accelerator: train before the prediction, or predict in another process "
                "(steptrace predict -- COMMAND)"
            ) from error


def ensure_registered() -> None:
    """Register the device unless this process has done so.

    Raises:
        PredictError: another library has taken PrivateUse1, or this PyTorch has no way to implement it.
    """
    absent = [row for row in missing("predict") if row.needed]
    if absent:
        raise PredictError(
            f"nothing can be predicted with PyTorch {torch.__version__}: {'; '.join(losses_of(absent))}",
            expected="a PyTorch from 2.11 to 2.14",
            next_step="install one of these beside the program, or a newer steptrace",
        )
    taken = _taken_by()
    if taken == DEVICE_TYPE:
        return
    if taken != _NOBODY_S:
        raise PredictError(
            f"PyTorch's PrivateUse1 backend is taken by {taken!r}",
            expected="a process in which no other library registers a backend",
            next_step="predict in a process of its own: python -m steptrace.predict.main",
        )
    before = {name: getattr(torch._C, name)() for name in _ASKED_FOR_ACCELERATOR if has(f"torch._C.{name}")}
    own_calls = _own_accelerator_calls()
    # Not `backend_registration._setup_privateuseone_for_python_backend`, which adds methods of this name to tensors,
    # storages and modules, and would leave them there.
    _registration("torch.utils.backend_registration.rename_privateuse1_backend")(DEVICE_TYPE)
    _without_threads()
    _registration("torch._C._acc.register_python_privateuseone_hook")(_Hooks())
    _registration("torch._C._acc.register_python_privateuseone_device_guard")(_DeviceGuard())
    if torch.cuda.is_available():
        for (owner, name), engine in replacing(ENGINE, EngineAfterPrediction).items():
            setattr(owner, name, engine)
    answers: dict[str, Any] = {name: partial(_accelerator, accelerator) for name, accelerator in before.items()}
    answers |= {
        f"_accelerator_{name}": partial(_of_own_accelerator, getattr(torch._C, f"_accelerator_{name}"), call)
        for name, call in own_calls.items()
        if has(f"torch._C._accelerator_{name}")
    }
    if _BACKEND_NAME is not None:
        answers["_get_privateuse1_backend_name"] = lambda: _NOBODY_S
    for name, answer in answers.items():
        setattr(torch._C, name, answer)
    _registered.append(DEVICE_TYPE)


def _without_threads() -> None:
    """Start PyTorch's engine of backward passes while no device exists for which it would start a thread.

    In the child of a process with such threads PyTorch refuses any backward pass, and compiled code is followed in a
    child.
    """
    with torch.inference_mode(False), torch.enable_grad():
        torch.ones((), device="cpu", requires_grad=True).mul(1).backward()  # type: ignore[no-untyped-call]


def _registration(path: str) -> Any:
    """A function that registers the device. The caller has checked that PyTorch has it."""
    return private(path)


def _taken_by() -> str:
    """The name of the spare backend, by PyTorch, or by this process's own registration if PyTorch cannot say it."""
    if _BACKEND_NAME is None:
        return _registered[0] if _registered else _NOBODY_S
    return str(_BACKEND_NAME())


#: Returns the name of the spare backend; "privateuseone" until a library has renamed it.
_BACKEND_NAME: Final = private("torch._C._get_privateuse1_backend_name")
#: The name under which this process has registered the device, once it has.
_registered: list[str] = []
_NOBODY_S: Final = "privateuseone"
#: Functions by which PyTorch's Python asks for the accelerator.
_ASKED_FOR_ACCELERATOR: Final = ("_get_accelerator", "_accelerator_getAccelerator")


def _accelerator(original: torch.device | None, *_: object) -> torch.device | None:
    """The accelerator: the virtual GPU during a prediction, else the one that the process had before any."""
    return torch.device("cuda") if machine.active else original


def _own_accelerator_calls() -> dict[str, Callable[..., Any]]:
    """What `torch.accelerator` asks of PyTorch's C++, as the process itself would answer it, by name.

    PyTorch's C++ asks the virtual device, also after a prediction. A process with a real GPU gets that GPU's answers,
    and another one the error that it got before. Dynamo asks for the current stream whenever it compiles a function.
    """
    calls = {
        "getDeviceIndex": torch.cuda.current_device,
        "setDeviceIndex": torch.cuda.set_device,
        "getStream": torch.cuda.current_stream,
        "setStream": torch.cuda.set_stream,
        "synchronizeDevice": torch.cuda.synchronize,
        "exchangeDevice": private("torch.cuda._exchange_device"),
        "maybeExchangeDevice": private("torch.cuda._maybe_exchange_device"),
    }
    if torch.cuda.is_available():
        return {name: call for name, call in calls.items() if call is not None}
    current = private("torch._C._accelerator_getDeviceIndex")
    if current is None:
        return {}
    try:
        current()
    except RuntimeError as error:
        return dict.fromkeys(calls, partial(_raise, str(error)))
    return {}  # an accelerator that is no GPU of CUDA


def _raise(message: str, *_: object) -> NoReturn:
    """Raise PyTorch's error again, which a build for CUDA words otherwise than one for the CPU."""
    raise RuntimeError(message)


def _of_own_accelerator(virtual: Callable[..., Any], own: Callable[..., Any], *args: Any) -> Any:
    """The answer of the virtual GPU during a prediction, else that of the process's own accelerator."""
    return (virtual if machine.active else own)(*args)


@contextmanager
def module_there() -> Iterator[None]:
    """The module of the backend, which PyTorch's C++ imports by its name, is there only during a prediction."""
    name = f"torch.{DEVICE_TYPE}"
    sys.modules[name] = _MODULE  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[name]


def forget_accelerator() -> None:
    """Clear the caches of PyTorch's functions about the accelerator, at both ends of a prediction."""
    for function in _REMEMBER:
        function.cache_clear()


#: Functions with a cache, whose answers depend on the accelerator.
_REMEMBER: Final[tuple[Any, ...]] = tuple(
    function
    for function in (
        torch.get_device_module,
        private("torch._utils._get_device_module"),
        private("torch.cuda._check_bf16_tensor_supported"),
    )
    if hasattr(function, "cache_clear")
)
