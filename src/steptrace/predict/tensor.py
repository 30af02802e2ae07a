"""Tensors of the virtual device. Each wraps a CPU tensor that holds its values, or a meta tensor, which has none."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, ClassVar, Final

import torch
from torch import Tensor
from torch.masked import MaskedTensor

from steptrace.predict import backend, memory
from steptrace.predict.limit import cannot_follow
from steptrace.predict.operators import SPARSE_PARTS
from steptrace.predict.pytorch import TensorBase, aten, dispatch_keys, functions_off
from steptrace.predict.stands_for import AttributesOfProgram, StandsFor, hidden, hidden_attribute, pickle_as_known
from steptrace.predict.storages import on_device, zeros_in_place_of
from steptrace.predict.syncs import Syncs
from steptrace.torch_names import private

#: Types of tensors by their names in `torch.cuda`.
CUDA_TYPE_NAMES = {
    torch.float64: "Double",
    torch.float32: "Float",
    torch.float16: "Half",
    torch.bfloat16: "BFloat16",
    torch.int64: "Long",
    torch.int32: "Int",
    torch.int16: "Short",
    torch.int8: "Char",
    torch.uint8: "Byte",
    torch.bool: "Bool",
}

#: The types in which operators nest tensors. A tuple, since a union of types would be made anew in millions of calls.
_NESTED = (list, tuple)
#: Makes a tensor of a subclass without memory of its own.
MAKE_WRAPPER: Any = private("torch.Tensor._make_wrapper_subclass")
#: They mark a tensor as one whose values are the conjugate, or the negative, of those in its memory.
_SET_CONJ: Any = private("torch._C._set_conj")
_SET_NEG: Any = private("torch._C._set_neg")
_REPR: Any = Tensor.__repr__
_TYPE: Any = TensorBase.type
#: The attributes of a tensor of the device that are not the program's.
_OURS: Final = ("_inner", "gpu")
#: The sizes of the parts of a nested tensor, a row for each part.
_NESTED_SIZES: Any = aten("_nested_tensor_size")
#: Marks by which C++ knows a nested tensor.
_NESTED_KEYS: Any = dispatch_keys("NestedTensor", "AutogradNestedTensor")
_NO_FUNCTION: Any = private("torch._C._disabled_torch_function_impl")


class VirtualTensor(Tensor, metaclass=StandsFor):
    """A tensor that says it is on "cuda:0", computes on the CPU, and reports what would make the host wait.

    C++ sees a PrivateUse1 tensor; what Python asks differently of a CUDA tensor is answered here.
    """

    stands_for: ClassVar[Any] = Tensor
    _inner: Tensor
    gpu: int
    #: Runs an operator by its overload, arguments and named arguments: `steptrace.predict.execution` sets it, which
    #: needs this class.
    _run: ClassVar[Callable[[Any, Sequence[Any], Mapping[str, Any]], Any]]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """As any subclass. PyTorch would switch it off for a class that sees operators, and with it for subclasses."""
        return super().__torch_function__(func, types, args, kwargs)  # type: ignore[no-untyped-call]

    @staticmethod
    def __new__(_cls: Any, inner: Tensor, gpu: int = 0, *, is_view: bool = False) -> "VirtualTensor":
        """Wrap a CPU tensor; `gpu` is the index of its virtual GPU. The memory of a view counts as another's."""
        if inner.is_nested:
            return _wrapped_nested(inner, gpu)
        layout = inner.layout
        has_strides = layout is torch.strided or layout is torch.sparse_coo
        wrapper: VirtualTensor = MAKE_WRAPPER(
            _PlainTensor,
            inner.size(),
            strides=inner.stride() if has_strides else None,
            storage_offset=inner.storage_offset() if has_strides else None,
            dtype=inner.dtype,
            layout=layout if has_strides else torch.strided,
            device=backend.device(gpu),
        )
        wrapper._inner = inner
        wrapper.gpu = gpu
        # C++ resolves these marks by a copy before it calls an operator that does not know them.
        if _SET_CONJ is not None and inner.is_conj():
            _SET_CONJ(wrapper, True)
        if _SET_NEG is not None and inner.is_neg():
            _SET_NEG(wrapper, True)
        if layout is torch.strided and not is_view:
            memory.track(inner, gpu)
        return wrapper

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if any(not issubclass(kind, VirtualTensor) and is_wrapper(kind) for kind in types):
            return NotImplemented  # other subclasses hold tensors of ours rather than the other way round
        with functions_off():
            return cls._run(func, args, kwargs or {})

    # Properties that a CUDA tensor answers differently.

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """The device as the program knows it."""
        return torch.device("cuda", self.gpu)

    @property
    def layout(self) -> torch.layout:  # type: ignore[override]
        """The layout of the values: C++ takes compressed sparse tensors, which it cannot wrap, for strided ones."""
        return self._inner.layout

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        """Yes."""
        return True

    @property
    def is_sparse_csr(self) -> bool:  # type: ignore[override]
        """Whether it is compressed by rows."""
        return self._inner.layout is torch.sparse_csr

    def type(self, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        """The type's name, or the tensor in another type."""
        return legacy_type(self) if dtype is None else super().type(dtype, *args, **kwargs)

    def to_dense(self, dtype: Any = None, *, masked_grad: Any = None) -> Tensor:
        """The same values with zeros between them; C++ takes compressed sparse tensors for dense ones."""
        if self.layout in (torch.strided, torch.sparse_coo):
            return super().to_dense(dtype, masked_grad=masked_grad)
        return aten("_to_dense")(self, dtype, masked_grad)  # type: ignore[no-any-return]

    def as_subclass(self, cls: Any) -> Any:
        """A view of a class of the program's that is on the device, too. C++ would make a tensor of it that is not."""
        with functions_off():
            return into_class(aten("alias")(self), cls)

    def data_ptr(self) -> int:
        """The address of the values on the CPU."""
        return self._inner.data_ptr()

    def untyped_storage(self) -> torch.UntypedStorage:
        """The values' memory, which FSDP gives back and takes again."""
        return on_device(self._inner.untyped_storage(), self.gpu)

    def pin_memory(self, _device: object = None) -> Tensor:
        """Raise as CUDA does."""
        raise RuntimeError(f"cannot pin '{self.type()}' only dense CPU tensors can be pinned")

    def is_shared(self) -> bool:
        """Yes, as of any tensor on a GPU."""
        return True

    def share_memory_(self) -> Tensor:
        """Nothing to do."""
        return self

    def record_stream(self, _stream: object) -> None:
        """Nothing to do: there is one stream."""

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        # PyTorch writes "tensor(...)" for exactly its own two classes, and the name of the class for any other.
        if type(self) is _Parameter:
            return f"Parameter containing:\n{self.detach().requires_grad_(self.requires_grad)!r}"
        return _as_plain(_REPR(self, tensor_contents=tensor_contents))

    # Reading values

    def tolist(self) -> Any:
        """The values, copied to the host. C++ refuses this for subclasses."""
        return self.detach().cpu().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        """Raise as CUDA does, unless forced to copy to the host."""
        if force:
            return self.detach().cpu().resolve_conj().resolve_neg().numpy()
        raise TypeError(
            "can't convert cuda:0 device type tensor to numpy. "
            "Use Tensor.cpu() to copy the tensor to host memory first."
        )

    def __format__(self, spec: str) -> str:
        # As Tensor.__format__ does for exactly its own type.
        return self.item().__format__(spec) if self.dim() == 0 else object.__format__(self, spec)

    def __reduce_ex__(self, protocol: Any) -> Any:
        # The copies to the host are counted where the storages are written: tensors that share one are copied once.
        for part in SPARSE_PARTS.get(self.layout, ()):
            on_device(getattr(self._inner, part)().untyped_storage(), self.gpu)
        if self.layout is torch.strided:
            self.untyped_storage()  # is the device's from now on
        values = self._inner.detach()
        if values.is_meta:
            if Syncs.active is not None:
                Syncs.active.assume("torch.save", "values that were not computed are saved")
            values = zeros_in_place_of(values, self.gpu)
        values = values.requires_grad_(self.requires_grad)
        if isinstance(self, torch.nn.Parameter):
            values = torch.nn.Parameter(values, self.requires_grad)
        if (kind := type(self).stands_for) not in (Tensor, torch.nn.Parameter):
            values = values.as_subclass(kind)
        values.__dict__.update(attributes_of_program(self))
        return values.__reduce_ex__(protocol)  # type: ignore[no-untyped-call]

    # Writing values

    def __setitem__(self, index: Any, value: Any) -> None:
        # python_variable_indexing.cpp turns a number into a CPU tensor if, and only if, it is assigned to CUDA: into
        # a mask or a slice it is then filled, elsewhere it is copied over.
        if isinstance(value, bool | int | float | complex):
            value = torch.scalar_tensor(value, dtype=self.dtype, device="cpu")
        super().__setitem__(index, value)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        if not self.is_leaf:
            raise RuntimeError("Only Tensors created explicitly by the user support the deepcopy protocol")
        if id(self) not in memo:
            copied: Any = self.detach().clone()
            copied.__dict__.update(attributes_of_program(self))
            memo[id(self)] = copied.requires_grad_(self.requires_grad)
            if self.grad is not None:
                copied.grad = self.grad.__deepcopy__(memo)  # type: ignore[no-untyped-call]
        return memo[id(self)]  # type: ignore[no-any-return]


def into_class(fresh: Any, cls: Any) -> Any:
    """Give a tensor of the device, which nothing else holds yet, a class of PyTorch's or of the program's.

    Raises:
        CannotFollowError: the class has slots, and so another layout.
    """
    kind = _class_on_device(cls)
    if kind in (_PlainTensor, _Parameter):
        fresh.__class__ = kind
        return fresh
    inner = fresh._inner
    gpu = fresh.gpu
    _ATTRIBUTES.__get__(fresh).clear()
    try:
        fresh.__class__ = kind
    except TypeError:
        raise cannot_follow(
            "`as_subclass()` of a tensor on the GPU, to a class with `__slots__`", "call it on the CPU"
        ) from None
    fresh._inner = inner
    fresh.gpu = gpu
    return fresh


def legacy_type(tensor: Tensor) -> str:
    """The name of a tensor's legacy type, `torch.cuda.FloatTensor` for one of the device.

    Raises:
        RuntimeError: a compressed sparse tensor has no such type. The message is PyTorch's.
    """
    layout = tensor.layout
    if is_virtual(tensor) and layout not in (torch.strided, torch.sparse_coo):
        raise RuntimeError("Unimplemented backend SparseCsrCUDA")
    with functions_off():
        name: str = _TYPE(tensor)
    return name.replace(f"torch.{backend.DEVICE_TYPE}.", "torch.cuda.")


def attributes_of_program(tensor: Tensor) -> dict[str, Any]:
    """A copy of the attributes that the program has given a tensor."""
    return dict(tensor.__dict__)


def take_ours(tensor: Tensor) -> dict[str, Any]:
    """The attributes of a tensor that are not the program's. The tensor has them no longer, nor a weak reference."""
    if not isinstance(tensor, _PlainTensor):
        return hidden.take(tensor)
    attributes = _ATTRIBUTES.__get__(tensor)
    return {name: attributes.pop(name) for name in _OURS}


def known_class(tensor: Tensor) -> Any:
    """The class of a tensor as the program knows it."""
    kind: Any = type(tensor).stands_for if isinstance(tensor, VirtualTensor) else type(tensor)
    return torch.nn.Parameter if kind is Tensor and isinstance(tensor, torch.nn.Parameter) else kind


@cache
def _class_on_device(kind: Any) -> Any:
    """The class of tensors of the device that stands for a class of the program's, and inherits both.

    It looks and pickles as the program's. What functions do with it, the program's class says (`__torch_function__`).
    """
    if issubclass(kind, VirtualTensor):
        return kind
    if kind in (Tensor, torch.nn.Parameter):
        return _PlainTensor if kind is Tensor else _Parameter
    metaclass: Any = StandsFor
    if not issubclass(StandsFor, type(kind)):
        metaclass = type(type(kind).__name__, (StandsFor, type(kind)), {})
        pickle_as_known(metaclass)
    names = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    ours = {name: hidden_attribute(name) for name in _OURS}
    return metaclass(kind.__name__, (kind, VirtualTensor), {"stands_for": kind, **names, **ours})


#: The attributes of an instance, as Python itself keeps them.
_ATTRIBUTES: Any = next(vars(kind)["__dict__"] for kind in VirtualTensor.__mro__ if "__dict__" in vars(kind))


class _PlainTensor(VirtualTensor):  # type: ignore[metaclass]
    """A tensor of the device of no class of the program's, which is nearly every one."""

    @property
    def __dict__(self) -> Any:
        """The attributes that the program has given the tensor: libraries hand all of them to a class's constructor."""
        return AttributesOfProgram(_ATTRIBUTES.__get__(self), _OURS)

    @__dict__.setter
    def __dict__(self, attributes: dict[str, Any]) -> None:
        before = _ATTRIBUTES.__get__(self)
        _ATTRIBUTES.__set__(self, {**attributes, **{name: before[name] for name in _OURS if name in before}})

    @classmethod
    def __torch_function__(cls, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of PyTorch as for any other tensor; replaced by PyTorch's own way, which takes less time."""
        with functions_off():
            return func(*args, **(kwargs or {}))

    if _NO_FUNCTION is not None:
        __torch_function__ = _NO_FUNCTION

    @staticmethod
    def __new__(_cls: Any, *args: Any, **kwargs: Any) -> Any:
        """A tensor as `torch.Tensor` makes it: a program that calls `type(x)` means that class."""
        return Tensor(*args, **kwargs)


class _ParameterStandsFor(StandsFor, type(torch.nn.Parameter)):  # type: ignore[misc]
    """The metaclass of parameters of the device."""


pickle_as_known(_ParameterStandsFor)


class _Parameter(_PlainTensor, torch.nn.Parameter, metaclass=_ParameterStandsFor):
    """A parameter of the device. As `torch.nn.Parameter` has it, a copy has neither gradient nor attributes."""

    stands_for: ClassVar[Any] = torch.nn.Parameter

    @staticmethod
    def __new__(_cls: Any, *args: Any, **kwargs: Any) -> Any:
        """A parameter: a program that calls `type(parameter)` means `torch.nn.Parameter`."""
        return torch.nn.Parameter(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        if id(self) not in memo:
            memo[id(self)] = torch.nn.Parameter(self.detach().clone(), self.requires_grad)
        return memo[id(self)]  # type: ignore[no-any-return]


class _NestedTensor(_PlainTensor):
    """A nested tensor of the strided layout. C++ sees the size that it would have with padding."""

    def size(self, dim: int | None = None) -> Any:
        """The size of a dimension in which all parts agree; PyTorch's error for another one, or for all of them."""
        return self._inner.size() if dim is None else self._inner.size(dim)

    @property
    def shape(self) -> torch.Size:  # type: ignore[override]
        """PyTorch's error."""
        return self._inner.size()

    def numel(self) -> int:
        """The number of elements, without padding."""
        return self._inner.numel()

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"nested_tensor({self.unbind()}, device='{self.device}')"


_NestedTensor.__name__ = _NestedTensor.__qualname__ = Tensor.__name__
_NestedTensor.__module__ = Tensor.__module__


def _wrapped_nested(inner: Tensor, gpu: int) -> "VirtualTensor":
    """Wrap a nested tensor of the strided layout: C++ then calls the operators that nested tensors have."""
    sizes = _NESTED_SIZES(inner)  # a single number for a tensor without parts
    has_sizes = sizes.dim() > 0 and sizes.numel()
    padded = [inner.size(0), *(sizes.max(0).values.tolist() if has_sizes else [0] * (inner.dim() - 1))]
    wrapper: VirtualTensor = MAKE_WRAPPER(
        _NestedTensor,
        padded,
        strides=[math.prod(padded[place + 1 :]) for place in range(len(padded))],
        dtype=inner.dtype,
        device=backend.device(gpu),
        _extra_dispatch_keys=_NESTED_KEYS,
    )
    wrapper._inner = inner
    wrapper.gpu = gpu
    memory.track(inner, gpu)
    return wrapper


#: Sets `tensor.data`, which mypy takes for a tensor rather than a property.
SET_DATA: Any = getattr(TensorBase, "data").__set__  # noqa: B009 - a property of C++'s

# Libraries such as wandb know a tensor by the name of its class.
_PlainTensor.__name__ = Tensor.__name__
_PlainTensor.__qualname__ = Tensor.__name__
_PlainTensor.__module__ = Tensor.__module__
_Parameter.__name__ = _Parameter.__qualname__ = torch.nn.Parameter.__name__
_Parameter.__module__ = torch.nn.Parameter.__module__


def _as_plain(text: str) -> str:
    return f"t{text[1:]}" if text.startswith("Tensor(") else text


def is_wrapper(kind: type) -> bool:
    """Whether a subclass of Tensor holds other tensors, as nested, distributed and masked tensors do."""
    return hasattr(kind, "__tensor_flatten__") or issubclass(kind, MaskedTensor)


def is_virtual(value: object) -> bool:
    """Whether a value is a tensor of the virtual device."""
    return isinstance(value, VirtualTensor)


def unwrap(value: Any) -> Any:
    """The CPU tensor behind a virtual one; anything else as it is."""
    return value._inner if isinstance(value, VirtualTensor) else value


def map_tensors(function: Callable[[Any], Any], value: Any) -> Any:
    """Apply a function to the leaves of lists and tuples, which is all the nesting that operators know."""
    if isinstance(value, _NESTED):
        return type(value)(
            [map_tensors(function, item) if isinstance(item, _NESTED) else function(item) for item in value]
        )
    return function(value)


def refresh(tensor: VirtualTensor) -> None:
    """Update size and strides after an operator has changed them in the CPU tensor inside."""
    inner = tensor._inner
    if inner.is_nested:
        return
    if tensor.shape != inner.shape or tensor.stride() != inner.stride():
        SET_DATA(tensor, VirtualTensor(inner, tensor.gpu))
