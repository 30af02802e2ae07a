"""Classes of `torch.cuda` during a prediction: streams, events, generators, and `FloatTensor` and the like.

Streams and events only say when the host waits.
"""
# ruff: noqa: D102 - the methods are those of `torch.cuda`

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from numbers import Integral
from typing import Any, Final, NoReturn

import torch
from torch import Tensor

from steptrace.predict.backend import DEVICE_TYPE, Replacements, cuda_device, virtual_device
from steptrace.predict.memory import UNFINISHED
from steptrace.predict.pytorch import TensorBase
from steptrace.predict.recorder import Syncs
from steptrace.predict.tensor import CUDA_TYPE_NAMES, LIMIT, is_virtual

#: The number of CUDA among PyTorch's types of devices.
_CUDA: Final = 1


def refuse(name: str) -> NoReturn:
    """What a program gets that asks for something of a real device."""
    full = name if name.startswith("torch.") else f"torch.cuda.{name}"
    raise NotImplementedError(LIMIT.format(full, "leave it out of a prediction, or use `steptrace run`"))


def refused(name: str) -> Callable[..., Any]:
    """A class that is not there: PyTorch or a program may ask whether something is an instance of it."""

    def create(*_: Any, **__: Any) -> NoReturn:
        refuse(name)

    return type(name.rpartition(".")[2], (), {"__new__": create, "create": create})


def host_waits(kind: str, op: str) -> None:
    """The program asks the host to wait."""
    if Syncs.active is not None:
        Syncs.active.sync(kind, op, "the program asks the host to wait")


class AnyEvent:
    """`torch.Event`. Waiting for it on the host is a sync; asking it, or waiting for it on a stream, is none."""

    event_id = 0

    def __init__(
        self,
        device: object = None,
        *,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,  # noqa: ARG002 - torch's own name
    ) -> None:
        self.device = cuda_device(device)
        self.enable_timing = enable_timing
        self.blocking = blocking
        self._at = 0.0

    def record(self, stream: object = None) -> None:  # noqa: ARG002 - torch's own name
        self._at = time.perf_counter()

    def wait(self, stream: object = None) -> None:
        pass

    def query(self) -> bool:
        UNFINISHED.clear()  # the program asks until it is over
        return True

    def elapsed_time(self, end_event: "AnyEvent") -> float:
        return (end_event._at - self._at) * 1e3

    def synchronize(self) -> None:
        host_waits("event", "torch.cuda.Event.synchronize")

    def ipc_handle(self) -> bytes:
        return refuse("Event.ipc_handle")

    @classmethod
    def from_ipc_handle(cls, device: object, handle: bytes) -> "AnyEvent":  # noqa: ARG003 - torch's own names
        return refuse("Event.from_ipc_handle")


class Event(AnyEvent):
    """`torch.cuda.Event`, which takes no device."""

    cuda_event = 0

    def __init__(
        self,
        enable_timing: bool = False,  # noqa: FBT001, FBT002 - torch's own
        blocking: bool = False,  # noqa: FBT001, FBT002
        interprocess: bool = False,  # noqa: FBT001, FBT002
        external: bool = False,  # noqa: ARG002, FBT001, FBT002
    ) -> None:
        super().__init__(enable_timing=enable_timing, blocking=blocking, interprocess=interprocess)


class Stream:
    """A CUDA stream. As a context it does nothing: on the virtual device everything happens at once."""

    cuda_stream = 0
    stream_id = 0
    device_type = _CUDA

    def __init__(self, device: object = None, priority: int = 0, **_: Any) -> None:
        self.priority = priority
        self.device = cuda_device(device)
        self.device_index = self.device.index

    def wait_event(self, event: object) -> None:
        pass

    def wait_stream(self, stream: object) -> None:
        pass

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    @staticmethod
    def priority_range() -> tuple[int, int]:
        return 0, -5

    def query(self) -> bool:
        UNFINISHED.clear()  # the program asks until it is over
        return True

    def is_capturing(self) -> bool:
        return False

    def synchronize(self) -> None:
        host_waits("stream", "torch.cuda.Stream.synchronize")

    @property
    def native_handle(self) -> int:
        return self.cuda_stream

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.cuda_stream

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_: object) -> None:
        pass


class ExternalStream(Stream):
    """A stream that another library has made."""

    def __init__(self, stream_ptr: int, device: object = None, **_: Any) -> None:
        super().__init__(device)
        self.cuda_stream = stream_ptr


class StreamContext(nullcontext[object]):
    """`torch.cuda.StreamContext`: a class of its own, since PyTorch asks whether something is an instance."""

    def __init__(self, stream: object) -> None:
        super().__init__(None)
        self.stream = stream


default_stream = Stream()


class Generator(torch.Generator):
    """A random generator "on cuda": the CPU's, since that draws the values."""

    _device: torch.device

    def __new__(cls, device: Any = "cpu") -> "Generator":
        """Make that of a device."""
        named = virtual_device(torch.device(device))
        on_cuda = named.type == DEVICE_TYPE
        made: Generator = super().__new__(cls, "cpu" if on_cuda else device)  # type: ignore[call-arg]
        made._device = cuda_device(named.index) if on_cuda else named
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """The device as the program knows it."""
        return self._device


_SET_DEFAULT = torch.set_default_tensor_type
#: Whether `torch.Tensor(...)` makes CUDA tensors, as a program may ask for by a default type.
_default: dict[str, bool] = {"on_cuda": False}


class _LegacyType(type):
    """Metaclass of these types: it answers `isinstance`, and a type has the properties of its tensors."""

    dtype: torch.dtype
    is_cuda = True
    is_sparse = False
    layout = torch.strided

    def __instancecheck__(cls, value: object) -> bool:
        return is_virtual(value) and value.dtype == cls.dtype and value.layout is torch.strided  # type: ignore[attr-defined]

    def __call__(cls, *args: Any, device: Any = "cuda") -> Tensor:
        """A tensor of a size, given as numbers or torch.Size; of data; or of a tensor of this type."""
        if len(args) == 1 and isinstance(args[0], Tensor):
            if not isinstance(args[0], cls):
                raise TypeError(f"expected {cls.__name__} (got {args[0].type()})")
            return args[0].detach()
        if args and not isinstance(args[0], Integral | torch.Size):
            return torch.tensor(args[0], dtype=cls.dtype, device=device)
        return torch.empty(*(args or (0,)), dtype=cls.dtype, device=device)


#: The types, by their names in `torch.cuda`.
TYPES = {
    f"{name}Tensor": _LegacyType(f"{name}Tensor", (), {"dtype": dtype, "__module__": "torch.cuda"})
    for dtype, name in CUDA_TYPE_NAMES.items()
}


def set_default_tensor_type(kind: Any) -> None:
    """Let factories make tensors of this type by default, on the device that it names."""
    of_cuda = as_type(kind)
    _default["on_cuda"] = of_cuda is not None
    if of_cuda is None:
        torch.set_default_device(None)
        _SET_DEFAULT(kind)
    else:
        torch.set_default_dtype(of_cuda.dtype)
        torch.set_default_device("cuda")


@contextmanager
def default_type() -> Iterator[Replacements]:
    """Let `torch.Tensor(...)` follow the default type, and forget that of CUDA afterwards."""

    def new(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if cls is Tensor and _default["on_cuda"]:
            return TYPES[f"{CUDA_TYPE_NAMES[torch.get_default_dtype()]}Tensor"](*args, **kwargs)
        return TensorBase.__new__(cls, *args, **kwargs)

    dtype = torch.get_default_dtype()
    try:
        yield {(Tensor, "__new__"): staticmethod(new)}
    finally:
        if _default["on_cuda"]:
            _default["on_cuda"] = False
            torch.set_default_dtype(dtype)


def as_type(kind: Any) -> _LegacyType | None:
    """The legacy type of CUDA tensors that is named or given; None for anything else."""
    if isinstance(kind, str) and kind.startswith("torch.cuda."):
        kind = TYPES.get(kind.removeprefix("torch.cuda."))
    return kind if isinstance(kind, _LegacyType) else None
