"""One call of an operator, and where it runs: on the host, on the virtual device, or as several smaller operators.

PyTorch's errors for tensors of host and GPU in one call are raised here.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from typing import Any, Final

import torch
from torch import Tensor

from steptrace.predict import backend
from steptrace.predict.operators import Overload, overload_of, tensors_of
from steptrace.predict.pytorch import aten
from steptrace.predict.tensor import VirtualTensor, is_virtual, map_tensors

#: Operators that may get a tensor with dimensions from the host: they copy it, look at its shape, or read it there, as
#: lengths.
_TAKE_FROM_HOST = {
    "_to_copy", "copy_", "_foreach_copy", "_foreach_copy_", "as_strided_scatter", "diagonal_scatter", "select_scatter",
    "slice_scatter", "is_same_size", "is_set_to", "resize_as_", "_use_cudnn_ctc_loss",
    "_pack_padded_sequence", "_pad_packed_sequence", "_ctc_loss", "_cudnn_ctc_loss", "_cudnn_rnn",
    "_cudnn_rnn_backward", "tensor_split", "_segment_reduce_backward", "bernoulli", "bernoulli_",
    "_unsafe_masked_index", "_unsafe_masked_index_put_accumulate", "rrelu_with_noise_backward",
}  # fmt: skip
#: Operators on lists that may get their factors in one tensor on the host: the number of arguments before that tensor.
_FACTORS_ON_HOST = dict.fromkeys(("_foreach_addcdiv", "_foreach_addcdiv_", "_foreach_addcmul", "_foreach_addcmul_"), 3)
#: Operators that refuse a single value on the host among tensors of a GPU; most others accept it.
_TAKE_NO_NUMBER = {
    "clamp", "clamp_", "clamp_min", "clamp_min_", "clamp_max", "clamp_max_", "isin", "searchsorted", "bucketize",
}  # fmt: skip
#: Operators that may write a single value of a GPU into a tensor of the host. PyTorch first copies the value, and any
#: indices, to the host.
_ASSIGN = {
    "fill", "fill_", "index_fill", "index_fill_", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index_put",
}  # fmt: skip
#: The operator that accepts lengths only on the host.
_PACK: Final = "_pack_padded_sequence"
_TO_COPY = aten("_to_copy")
_NESTED = (list, tuple)
#: Device types that mean the virtual GPU. PyTorch's own Python code may have passed "cuda" to its C++ code.
VIRTUAL_TYPES: Final = (backend.DEVICE_TYPE, "cuda")


class RunsOn(Enum):
    """Where an operator runs."""

    HOST = auto()
    #: A composite operator, which arrives whole in inference mode. The operators that it consists of run one by one.
    PARTS = auto()
    DEVICE = auto()


class OperatorCall:
    """One call of an operator, with arguments on any devices.

    Attributes:
        overload: the operator.
        args: the arguments by position.
        kwargs: the arguments by name.
        tensors: the tensors among the arguments.
        virtual: those of them that are on the virtual device.
    """

    __slots__ = ("args", "kwargs", "overload", "tensors", "virtual")

    def __init__(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self.overload = overload_of(func)
        self.args = args
        self.kwargs = kwargs
        self.tensors = tensors_of(args)
        if kwargs:
            self.tensors += tensors_of(kwargs.values())
        self.virtual = [tensor for tensor in self.tensors if isinstance(tensor, VirtualTensor)]

    def resolve(self, copy: Callable[[Any], Any]) -> None:
        """Copy the conjugate and negative views among the arguments, as PyTorch's C++ does for most operators.

        Inside a composite operator that arrived whole C++ leaves that out.
        """

        def resolved(value: Any) -> Any:
            is_view = isinstance(value, VirtualTensor) and (value._inner.is_conj() or value._inner.is_neg())
            return copy(value) if is_view else value

        if any(tensor._inner.is_conj() or tensor._inner.is_neg() for tensor in self.virtual):
            self.args = map_tensors(resolved, list(self.args))
            self.kwargs = {name: map_tensors(resolved, value) for name, value in self.kwargs.items()}
            self.tensors = tensors_of((*self.args, *self.kwargs.values()))
            self.virtual = [tensor for tensor in self.tensors if isinstance(tensor, VirtualTensor)]


def runs_on(call: OperatorCall) -> RunsOn:
    """Where an operator runs. Single values that PyTorch would first copy to the host are copied.

    Raises:
        RuntimeError: CUDA does not take these tensors together.
    """
    overload = call.overload
    args = call.args
    if not call.virtual and not (overload.takes_device and _names_virtual(args, call.kwargs)):
        return RunsOn.HOST
    if overload.is_composite and not (overload.is_whole_if_nested and any(t._inner.is_nested for t in call.virtual)):
        return RunsOn.PARTS
    if overload.namespace != "aten":
        return RunsOn.DEVICE
    if overload.packet == _PACK and is_virtual(args[1]):
        raise RuntimeError(f"'lengths' argument should be a 1D CPU int64 tensor, but got one on {args[1].device}")
    if 0 < len(call.virtual) < len(call.tensors):
        if overload.packet in _ASSIGN and not is_virtual(args[0]):
            call.args = _copied_for_assignment(args)
            if not any(map(is_virtual, tensors_of(call.args))):
                return RunsOn.HOST
        _refuse_host(overload, call.args, call.tensors)
    return RunsOn.DEVICE


def _copied_for_assignment(args: Sequence[Any]) -> list[Any]:
    """The arguments with their single values and lists of indices copied to the host."""
    return [
        [_on_host(index) for index in value]
        if isinstance(value, _NESTED)
        else _on_host(value)
        if isinstance(value, Tensor) and value.dim() == 0
        else value
        for value in args
    ]


def _on_host(value: Any) -> Any:
    return _TO_COPY(value, device=torch.device("cpu")) if is_virtual(value) else value


def _names_virtual(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    # In inference mode `aten::to` arrives whole, and may name its device by position.
    target = kwargs.get("device") or next((value for value in args if isinstance(value, torch.device)), None)
    return target is not None and torch.device(target).type in VIRTUAL_TYPES


def _refuse_host(overload: Overload, args: Sequence[Any], tensors: Sequence[Tensor]) -> None:
    """Raise CUDA's error if host and GPU tensors are mixed; indices, and mostly single values, may be on the host."""
    if overload.packet in _TAKE_FROM_HOST:
        return
    indices = set(map(id, args[1])) if overload.is_index else set()
    if overload.packet in _FACTORS_ON_HOST:
        args = args[: _FACTORS_ON_HOST[overload.packet]]
    for together in _by_place(args) if overload.packet.startswith("_foreach_") else (tensors,):
        numbers_pass = overload.packet not in _TAKE_NO_NUMBER
        on_host = any(
            not is_virtual(tensor) and id(tensor) not in indices and not (numbers_pass and tensor.dim() == 0)
            for tensor in together
        )
        if on_host and any(map(is_virtual, together)):
            message = "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"
            raise RuntimeError(f"{message} ({overload.func.name()})")


def _by_place(args: Sequence[Any]) -> list[list[Tensor]]:
    """The tensors at each index of an operator's lists, together with the tensors outside of lists."""
    lists = [value for value in args if isinstance(value, _NESTED)]
    return [[tensor for tensor in (*place, *args) if isinstance(tensor, Tensor)] for place in zip(*lists, strict=False)]
