"""Classes of `torch.cuda` during a prediction: streams, events, generators, and `FloatTensor` and the like.

Streams and events only say when the host waits.
"""
# ruff: noqa: D102 - the methods are those of `torch.cuda`

import ctypes
import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from numbers import Integral
from typing import Any, Final, NamedTuple, NoReturn

import torch
from torch import Tensor

from steptrace.predict.backend import (
    DEVICE_TYPE,
    Replacements,
    choose_device,
    cuda_device,
    device_index,
    index_of,
    seed_and_offset,
    state_of,
    virtual_device,
)
from steptrace.predict.chosen_stream import CHOSEN, is_default
from steptrace.predict.limit import cannot_follow
from steptrace.predict.memory import UNFINISHED
from steptrace.predict.pytorch import TensorBase
from steptrace.predict.syncs import Syncs
from steptrace.predict.tensor import CUDA_TYPE_NAMES, is_virtual
from steptrace.torch_names import private

#: The number of CUDA among PyTorch's types of devices.
_CUDA: Final = 1


def refuse(name: str) -> NoReturn:
    """Raise the error for a program that needs a real device."""
    full = name if name.startswith("torch.") else f"torch.cuda.{name}"
    raise cannot_follow(full, "leave it out of a prediction, or use `steptrace run`")


def refused(name: str) -> Callable[..., Any]:
    """A class that cannot be used. It exists because PyTorch or a program may check for instances of it."""

    def create(*_: Any, **__: Any) -> NoReturn:
        refuse(name)

    return type(name.rpartition(".")[2], (), {"__new__": create, "create": create})


def host_waits(kind: str, op: str) -> None:
    """The program asks the host to wait."""
    if Syncs.active is not None:
        Syncs.active.sync(kind, op, "the program asks the host to wait")


def is_capturing() -> bool:
    """Whether a CUDA graph captures what this thread launches."""
    return Syncs.active is not None and Syncs.active.thread.is_capturing


def _stream_waits(waiting: "AnyStream | None", other: "AnyStream | None", copies: int) -> None:
    """A stream waits for another one, which was given `copies` copies between host and GPU until then."""
    if Syncs.active is None or is_default(waiting) == is_default(other):
        return
    if is_default(waiting):
        Syncs.active.wait_for_copies(copies)
    else:
        Syncs.active.copies_wait()


class AnyEvent:
    """`torch.Event`. A wait of the host for it is a sync; a query, or a wait of a stream, is not."""

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
        self._at: float | None = None
        self._stream: AnyStream | None = None
        self._copies = 0

    def record(self, stream: "AnyStream | None" = None) -> None:
        self._at = time.perf_counter()
        self._stream = current_stream() if stream is None else stream
        self._copies = 0 if Syncs.active is None else Syncs.active.copies_beside()

    def wait(self, stream: "AnyStream | None" = None) -> None:
        if self._at is not None:
            _stream_waits(current_stream() if stream is None else stream, self._stream, self._copies)

    def query(self) -> bool:
        UNFINISHED.clear()  # the program asks again until the work is over
        return True

    def elapsed_time(self, end_event: "AnyEvent") -> float:
        if not (self.enable_timing and end_event.enable_timing):
            msg = "Both events must be created with argument 'enable_timing=True'."
            raise ValueError(msg)
        if self._at is None or end_event._at is None:
            msg = "Both events must be recorded before calculating elapsed time."
            raise ValueError(msg)
        return (end_event._at - self._at) * 1e3

    def synchronize(self) -> None:
        if self._at is not None:  # CUDA has no event to wait for before the first record
            host_waits("event", "torch.cuda.Event.synchronize")

    def ipc_handle(self) -> bytes:
        return refuse("Event.ipc_handle")

    @classmethod
    def from_ipc_handle(cls, device: object, handle: bytes) -> "AnyEvent":  # noqa: ARG003 - torch's own names
        return refuse("Event.from_ipc_handle")

    def __repr__(self) -> str:
        index = self.device.index if self._at is not None else -1  # it has a device from its first record on
        return f"torch.Event device_type=cuda, device_index={index}, event_flag=0, event_id={self.event_id}"


class Event(AnyEvent):
    """`torch.cuda.Event`, which takes no device."""

    def __init__(
        self,
        enable_timing: bool = False,  # noqa: FBT001, FBT002 - torch's own
        blocking: bool = False,  # noqa: FBT001, FBT002
        interprocess: bool = False,  # noqa: FBT001, FBT002
        external: bool = False,  # noqa: ARG002, FBT001, FBT002
    ) -> None:
        super().__init__(enable_timing=enable_timing, blocking=blocking, interprocess=interprocess)

    @property
    def cuda_event(self) -> int:
        return 0 if self._at is None else id(self)

    @property
    def _as_parameter_(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.cuda_event)

    def __repr__(self) -> str:
        return f"<torch.cuda.Event {hex(self.cuda_event) if self.cuda_event else 'uninitialized'}>"


#: The numbers of streams that programs make.
_stream_numbers: Final = itertools.count(1)


class AnyStream:
    """`torch.Stream`. As a context it is the current one; the virtual device does everything at once."""

    device_type = _CUDA

    def __init__(self, device: object = None, priority: int = 0, **of_another: Any) -> None:
        self.priority = priority
        self._before: list[_Chosen] = []
        # A stream that exists is made again by its number, and by that of its GPU.
        self.device = cuda_device(of_another.get("device_index", device))
        self.device_index = self.device.index
        self.stream_id: int = of_another["stream_id"] if "stream_id" in of_another else next(_stream_numbers)

    def wait_event(self, event: AnyEvent) -> None:
        event.wait(self)

    def wait_stream(self, stream: "AnyStream") -> None:
        _stream_waits(self, stream, 0 if Syncs.active is None else Syncs.active.copies_beside())

    def record_event(self, event: AnyEvent | None = None) -> AnyEvent:
        event = event or AnyEvent()
        event.record(self)
        return event

    def query(self) -> bool:
        UNFINISHED.clear()  # the program asks again until the work is over
        return True

    def is_capturing(self) -> bool:
        return self is CHOSEN.streams.get(self.device.index) and is_capturing()

    def synchronize(self) -> None:
        host_waits("stream", "torch.cuda.Stream.synchronize")

    @property
    def native_handle(self) -> int:
        return self.stream_id

    def __enter__(self) -> "AnyStream":
        self._before.append(_choose(self))
        return self

    def __exit__(self, *_: object) -> None:
        _go_back(self._before.pop())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AnyStream) and (self.stream_id, self.device) == (other.stream_id, other.device)

    def __hash__(self) -> int:
        return hash((self.stream_id, self.device))

    def __repr__(self) -> str:
        return f"torch.Stream device_type=cuda, device_index={self.device_index}, stream_id={self.stream_id}"


class Stream(AnyStream):
    """`torch.cuda.Stream`."""

    @property
    def cuda_stream(self) -> int:
        return self.stream_id

    def record_event(self, event: AnyEvent | None = None) -> AnyEvent:
        return super().record_event(event or Event())

    @staticmethod
    def priority_range() -> tuple[int, int]:
        return 0, -5

    @property
    def _as_parameter_(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.cuda_stream)

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.cuda_stream

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device={self.device} cuda_stream={self.cuda_stream:#x}>"


class ExternalStream(Stream):
    """A stream that another library has made."""

    def __init__(self, stream_ptr: int, device: object = None, **_: Any) -> None:
        super().__init__(device, stream_id=stream_ptr)


_default_streams: Final[dict[torch.device, Stream]] = {}


class _Chosen(NamedTuple):
    """What a thread had chosen before it chose a stream: its GPU, and the stream of the GPU of the new one."""

    gpu: int
    gpu_of_stream: int
    stream: AnyStream | None


def _choose(stream: AnyStream) -> _Chosen:
    """Make a stream, and its GPU, the current ones of this thread; return what it had chosen before."""
    gpu = stream.device.index
    before = _Chosen(device_index(), gpu, CHOSEN.streams.get(gpu))
    CHOSEN.streams[gpu] = stream
    if gpu != before.gpu:
        choose_device(gpu)
    return before


def _go_back(before: _Chosen) -> None:
    if before.stream is None:
        CHOSEN.streams.pop(before.gpu_of_stream, None)
    else:
        CHOSEN.streams[before.gpu_of_stream] = before.stream
    if device_index() != before.gpu:
        choose_device(before.gpu)


def default_stream(device: Any = None) -> Stream:
    """`torch.cuda.default_stream`: that of a GPU, or of the current one."""
    device = cuda_device(device)
    if device not in _default_streams:
        _default_streams[device] = Stream(device, stream_id=0)
    return _default_streams[device]


def current_stream(device: Any = None) -> Stream:
    """`torch.cuda.current_stream`: the stream that the program has chosen for a GPU, or for the current one."""
    stream = CHOSEN.streams.get(index_of(device))
    if stream is None:
        return default_stream(device)
    if isinstance(stream, Stream):
        return stream
    return Stream(stream.device, stream.priority, stream_id=stream.stream_id)


def forget_streams() -> None:
    """Let the default streams be the current ones of this thread."""
    CHOSEN.streams = {}


def set_stream(stream: AnyStream | None) -> None:
    """`torch.cuda.set_stream`: its GPU becomes the current one, too. None changes nothing."""
    if stream is not None:
        _choose(stream)


class StreamContext:
    """`torch.cuda.StreamContext`: inside it a stream and its GPU are current. All streams do everything at once."""

    def __init__(self, stream: AnyStream | None) -> None:
        self.stream = stream
        self._before: list[_Chosen | None] = []

    def __enter__(self) -> None:
        self._before.append(None if self.stream is None else _choose(self.stream))

    def __exit__(self, *_: object) -> None:
        before = self._before.pop()
        if before is not None:
            _go_back(before)


#: PyTorch's own class, which a prediction replaces.
GeneratorOfTorch: Final[Any] = torch.Generator
#: Offsets of a CUDA generator are multiples of this.
_OFFSET_UNIT: Final = 4
#: How many states of generators are remembered at most.
_MOST_STATES: Final = 256
#: States of the CPU's generator, by the seed and the offset that stand for each on the GPU.
_states: dict[tuple[int, int], Tensor] = {}


class _KindOfGenerator(type(torch.Generator)):  # type: ignore[misc]
    """Metaclass by which generators that PyTorch made are instances, too."""

    def __instancecheck__(cls, value: object) -> bool:
        return type.__instancecheck__(GeneratorOfTorch if cls is Generator else cls, value)


class Generator(torch.Generator, metaclass=_KindOfGenerator):
    """`torch.Generator`: one of the CPU, or one of a virtual GPU."""

    def __new__(cls, device: Any = "cpu") -> "Generator":
        """The generator of a device."""
        named = virtual_device(torch.device(device))
        if named.type != DEVICE_TYPE:
            return super().__new__(cls, device)  # type: ignore[call-arg]
        generator = super().__new__(GpuGenerator, "cpu")  # type: ignore[call-arg]
        generator.gpu = named.index
        return generator

    def __reduce__(self) -> Any:
        return (GeneratorOfTorch, *super().__reduce__()[1:])  # it is found by its name, also after a prediction


class GpuGenerator(Generator):
    """A random generator "on cuda": the CPU's, since that draws the values.

    Its state has the form of a CUDA generator's, seed and offset. An offset counts the states that the program has
    asked for, and stands for one of the CPU's.
    """

    gpu: int
    _offset = 0

    def __init__(self, *_: object, **__: object) -> None:
        """Do nothing: `__new__` has made the generator."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """The device as the program knows it."""
        return cuda_device(self.gpu)

    def manual_seed(self, seed: int) -> "GpuGenerator":
        self._offset = 0
        super().manual_seed(seed)
        return self

    def seed(self) -> int:
        self._offset = 0
        return super().seed()

    def get_state(self) -> Tensor:
        self._offset += _OFFSET_UNIT
        while len(_states) >= _MOST_STATES:
            del _states[next(iter(_states))]
        _states[self.initial_seed(), self._offset] = super().get_state()
        return state_of(self.initial_seed(), self._offset)

    def set_state(self, new_state: Tensor) -> "GpuGenerator":
        self._set(*seed_and_offset(new_state))
        return self

    def get_offset(self) -> int:
        return self._offset

    def set_offset(self, offset: int) -> "GpuGenerator":
        self._set(self.initial_seed(), offset)
        return self

    def clone_state(self) -> "GpuGenerator":
        return _on_gpu(self.gpu).set_state(self.get_state())

    def graphsafe_get_state(self) -> "GpuGenerator":
        return self

    def graphsafe_set_state(self, state: torch.Generator) -> "GpuGenerator":
        return self.set_state(state.get_state())

    def __reduce__(self) -> Any:
        return _with_state, (self.gpu, self.get_state())

    def _set(self, seed: int, offset: int) -> None:
        state = _states.get((seed, offset))
        if state is None:
            super().manual_seed(seed)
        else:
            super().set_state(state)
        self._offset = offset


# As programs print it, and as on CUDA.
GpuGenerator.__name__ = Generator.__name__
GpuGenerator.__qualname__ = Generator.__name__


def _on_gpu(gpu: int) -> GpuGenerator:
    generator = Generator(cuda_device(gpu))
    assert isinstance(generator, GpuGenerator)
    return generator


def _with_state(gpu: int, state: Tensor) -> GpuGenerator:
    """The generator that was pickled."""
    return _on_gpu(gpu).set_state(state)


class DefaultGenerator(GpuGenerator):
    """The default generator of a GPU: draws from it are draws from the CPU's default generator.

    The CPU's keeps its state, as it has one of its own on a machine with a GPU: to set a GPU's state has no effect.
    """

    def __new__(cls, gpu: int) -> "DefaultGenerator":
        """The default generator of a GPU."""
        generator: DefaultGenerator = GeneratorOfTorch.__new__(cls, "cpu")
        generator.gpu = gpu
        return generator

    def initial_seed(self) -> int:
        return torch.default_generator.initial_seed()

    def manual_seed(self, seed: int) -> "DefaultGenerator":
        torch.default_generator.manual_seed(seed)
        return self

    def seed(self) -> int:
        return torch.default_generator.seed()

    def get_state(self) -> Tensor:
        return state_of(self.initial_seed(), self._offset)

    def set_state(self, new_state: Tensor) -> "DefaultGenerator":
        seed_and_offset(new_state)
        return self

    def clone_state(self) -> GpuGenerator:
        return _on_gpu(self.gpu).manual_seed(self.initial_seed())

    def _set(self, _seed: int, _offset: int) -> None:
        """No effect."""


#: A context in which no mode sees operators.
_dispatch_off: Final[Any] = private("torch._C._DisableTorchDispatch") or nullcontext
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
    """A context in which `torch.Tensor(...)` follows the default type; afterwards CUDA's default type is forgotten."""

    def new(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if cls is Tensor and _default["on_cuda"]:
            return TYPES[f"{CUDA_TYPE_NAMES[torch.get_default_dtype()]}Tensor"](*args, **kwargs)
        if cls is Tensor:
            return TensorBase.__new__(cls, *args, **kwargs)
        if any(map(is_virtual, args)):
            raise cannot_follow(f"{cls.__name__}() of a tensor on the GPU", "call it on the CPU")
        with _dispatch_off():  # C++ cannot make a tensor of a class out of one that a mode returns
            return TensorBase.__new__(cls, *args, **kwargs)

    dtype = torch.get_default_dtype()
    try:
        yield {(Tensor, "__new__"): staticmethod(new)}
    finally:
        if _default["on_cuda"]:
            _default["on_cuda"] = False
            torch.set_default_dtype(dtype)


def as_type(kind: Any) -> _LegacyType | None:
    """The legacy type of CUDA tensors that a value is or names; None for any other value."""
    if isinstance(kind, str) and kind.startswith("torch.cuda."):
        kind = TYPES.get(kind.removeprefix("torch.cuda."))
    return kind if isinstance(kind, _LegacyType) else None


def _named(known: Any, *kinds: Any) -> None:
    """Give classes the name of the class that they stand for: programs print and compare it."""
    for kind in kinds:
        kind.__module__ = known.__module__
        kind.__name__ = known.__name__
        kind.__qualname__ = known.__qualname__


_named(torch.Event, AnyEvent)
_named(torch.cuda.Event, Event)
_named(torch.Stream, AnyStream)
_named(torch.cuda.Stream, Stream)
_named(torch.cuda.ExternalStream, ExternalStream)
_named(torch.cuda.StreamContext, StreamContext)
_named(torch.Generator, Generator, GpuGenerator, DefaultGenerator)
