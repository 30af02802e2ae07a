"""scaled_dot_product_attention as a GPU runs it: the fused operator that CUDA chooses, with values from the CPU.

Which tensors each fused operator takes is written in `aten/src/ATen/native/transformers/cuda/sdp_utils.cpp`. PyTorch
tries them in an order of its own: flash attention, the memory-efficient one, plain products, cuDNN's. On data center
GPUs of the generations Hopper and Blackwell, PyTorch for CUDA 13 begins with cuDNN's. The first one is chosen that is
switched on and takes the tensors on the named GPU. The values are computed without dropout.
"""

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention.bias import CausalBias, CausalVariant

from steptrace.predict.backend import DEVICE_TYPE, Replacements, machine
from steptrace.predict.limit import cannot_follow
from steptrace.predict.on_host import gradients
from steptrace.predict.pytorch import aten, replacing, substitute_table
from steptrace.predict.syncs import Syncs
from steptrace.predict.tensor import is_virtual, is_wrapper
from steptrace.torch_names import private

_PLAIN: Any = private("torch._C._nn.scaled_dot_product_attention")
_MATH: Any = aten("_scaled_dot_product_attention_math")
_EFFICIENT: Any = aten("_scaled_dot_product_efficient_attention")
_FLASH: Any = aten("_scaled_dot_product_flash_attention")
_CUDNN: Any = aten("_scaled_dot_product_cudnn_attention")
#: PyTorch's numbers of the forms of attention, in the order in which it tries them; plain products where it has none.
_ORDER: Final[Callable[[], Any]] = private("torch._C._get_sdp_priority_order") or (lambda: (0,))
#: The order in which a program begins.
_USUAL_ORDER: Final = tuple(_ORDER())
#: Major numbers of the capabilities of GPUs on which PyTorch begins with cuDNN's, since PyTorch 2.10 for CUDA 13.
_CUDNN_FIRST: Final = (9, 10)
_CUDNN_NUMBER: Final = 3
#: Set to 1, it keeps the usual order.
_CUDNN_LAST: Final = "TORCH_CUDNN_SDPA_DEPRIORITIZED"
_LENGTHS: Final = "attention of nested tensors may copy their lengths to the device, and waits then"
_HALF: Final = (torch.float16, torch.bfloat16)
#: The memory-efficient operator takes heads of a multiple of so many elements, by their bytes.
_MULTIPLE: Final = {4: 4, 2: 8}
#: Flash attention pads heads to a multiple of this; cuDNN takes such heads only.
_MULTIPLE_OF_HALF: Final = 8
_LARGEST_HEAD: Final = 256
#: cuDNN's largest heads on Hopper, and on other GPUs; and the two sizes, of keys and of values, that it takes on
#: Blackwell beside.
_LARGEST_HOPPER = 256
_LARGEST_CUDNN = 128
_BLACKWELL_HEADS = (192, 128)
#: The dropout probabilities that cuDNN supports.
_DROPOUTS: Final = 16
#: The memory-efficient operator pads the tensor that it keeps for the backward pass to a multiple of this.
_PADDED: Final = 32
_ALIGNED: Final = 8


class _Call(NamedTuple):
    """The arguments of one attention, with tensors of four dimensions on the device."""

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    dropout: float
    is_causal: bool
    scale: float | None
    enable_gqa: bool

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.query, self.key, self.value

    @property
    def is_grouped(self) -> bool:
        """Whether several heads of the query share one of the keys."""
        return self.query.shape[1] != self.key.shape[1]

    def may_be_fused(self) -> bool:
        """Whether any fused operator may take the tensors."""
        shapes = all(tensor.dim() == 4 and tensor.numel() > 0 and tensor.stride(-1) == 1 for tensor in self.tensors)
        return (
            shapes and (self.enable_gqa or not self.is_grouped) and len({tensor.dtype for tensor in self.tensors}) == 1
        )

    def is_half(self) -> bool:
        """Whether the tensors have 16 bits."""
        return self.query.dtype in _HALF

    def has_heads_of(self, multiple: int, most: int | None = None) -> bool:
        """Whether heads have a multiple of so many elements, and at most so many."""
        sizes = {tensor.shape[-1] for tensor in self.tensors}
        return all(size % multiple == 0 and (most is None or size <= most) for size in sizes)


def attention(  # noqa: PLR0913 - torch's own
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,  # noqa: FBT001, FBT002 - torch's own
    scale: float | None = None,
    enable_gqa: bool = False,  # noqa: FBT001, FBT002
) -> Tensor:
    """Replaces `torch.nn.functional.scaled_dot_product_attention`, which would take plain products on this device.

    Raises:
        RuntimeError: no operator that is switched on takes the tensors; PyTorch's own words.
    """
    if query.is_nested and query.device.type != "cpu":
        if query.layout is not torch.strided:
            raise cannot_follow("scaled_dot_product_attention of jagged tensors", "pad them")
        if Syncs.active is not None:
            Syncs.active.cannot_judge("aten::scaled_dot_product_attention", _LENGTHS)
    tensors = [query, key, value]
    output: Tensor
    if query.is_nested or not all(map(_is_on_device, tensors)):
        output = _PLAIN(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        return output
    if torch.is_autocast_enabled("cuda"):
        tensors = [tensor.to(torch.get_autocast_dtype("cuda")) for tensor in tensors]
    query, key, value = tensors
    if isinstance(attn_mask, CausalBias):
        is_causal = attn_mask.variant is CausalVariant.UPPER_LEFT or attn_mask.seq_len_q == attn_mask.seq_len_kv
        attn_mask = None if is_causal else attn_mask._materialize(query.device)
    call = _Call(query, key, value, attn_mask, float(dropout_p), bool(is_causal), scale, enable_gqa)
    return _attended(call, _order())


def of_fakes(  # noqa: PLR0913 - torch's own
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,  # noqa: FBT001, FBT002 - torch's own
    scale: float | None = None,
    enable_gqa: bool = False,  # noqa: FBT001, FBT002
) -> Tensor:
    """`attention` for tensors without values, while code is compiled."""
    tensors = [query, key, value]
    if torch.is_autocast_enabled(DEVICE_TYPE):
        tensors = [tensor.to(torch.get_autocast_dtype(DEVICE_TYPE)) for tensor in tensors]
    query, key, value = tensors
    call = _Call(query, key, value, attn_mask, float(dropout_p), bool(is_causal), scale, enable_gqa)
    return _attended(call, tuple(_ORDER()))


def _attended(call: _Call, order: Sequence[int]) -> Tensor:
    """The result of the first form of attention that is switched on and takes the tensors.

    Raises:
        RuntimeError: no form fits. The message is PyTorch's.
    """
    for number in order:
        backend = _BACKENDS.get(number)
        if backend is not None and backend.is_enabled() and backend.takes(call):
            output: Tensor = backend.attend(call)
            return output
    raise RuntimeError("No available kernel. Aborting execution.")


def is_fused(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether a fused operator takes the tensors, without mask and dropout."""
    call = _Call(query, key, value, None, 0.0, False, None, False)
    backend = next(
        (number for number in _order() if (form := _BACKENDS.get(number)) and form.is_enabled() and form.takes(call)),
        0,
    )
    return backend != 0


def replacements() -> Replacements:
    """The replacements of the functions that say which fused operator takes some tensors."""
    return {
        **replacing("torch._C._is_flash_attention_available", lambda _: lambda: True),  # on every GPU
        **replacing("torch._C._can_use_flash_attention", partial(_answering, takes=_takes_flash)),
        **replacing("torch._C._can_use_mem_efficient_attention", partial(_answering, takes=_takes_efficient)),
        **replacing("torch._C._can_use_cudnn_attention", partial(_answering, takes=_takes_cudnn)),
    }


def _answering(original: Callable[..., bool], takes: Callable[[_Call], bool]) -> Callable[..., bool]:
    def can_use(params: Any, debug: bool = False) -> bool:  # noqa: FBT001, FBT002 - torch's own
        tensors = params.query, params.key, params.value
        if not all(map(is_virtual, tensors)):
            return original(params, debug)
        return takes(_Call(*tensors, params.attn_mask, params.dropout, params.is_causal, None, params.enable_gqa))

    return can_use


def _is_on_device(value: Any) -> bool:
    """Whether a tensor lies on the device, or, as a distributed one does, holds a part that lies there."""
    if is_virtual(value):
        return True
    return is_wrapper(type(value)) and not value.is_nested and value.device.type in (DEVICE_TYPE, "cuda")


def _order() -> tuple[int, ...]:
    """The numbers of the forms in the order in which they are tried: the program's, or that of the GPU."""
    order = tuple(_ORDER())
    first = machine.driver.capability[0] in _CUDNN_FIRST and os.environ.get(_CUDNN_LAST) != "1"
    return (_CUDNN_NUMBER, *order) if first and order == _USUAL_ORDER else order


def _takes_flash(call: _Call) -> bool:
    sizes = {tensor.shape[-1] for tensor in call.tensors}
    square = not call.is_causal or call.query.shape[-2] == call.key.shape[-2]
    fits = len(sizes) == 1 and max(sizes) <= _LARGEST_HEAD and square
    return machine.driver.is_ampere and call.may_be_fused() and call.is_half() and call.mask is None and fits


def _takes_efficient(call: _Call) -> bool:
    multiple = _MULTIPLE.get(call.query.element_size())
    if call.query.dtype is torch.bfloat16 and not machine.driver.is_ampere:
        return False
    return multiple is not None and call.may_be_fused() and not call.is_grouped and call.has_heads_of(multiple)


def _takes_cudnn(call: _Call) -> bool:
    if not (
        machine.driver.is_ampere
        and call.may_be_fused()
        and call.is_half()
        and call.has_heads_of(_MULTIPLE_OF_HALF)
        and _has_heads_for_cudnn(call)
    ):
        return False
    if torch.are_deterministic_algorithms_enabled() and not torch.is_deterministic_algorithms_warn_only_enabled():
        return False
    drops_for_one = call.dropout and call.query.shape[-2] == 1
    return (call.dropout * _DROPOUTS).is_integer() and call.key.shape[-2] != 1 and not drops_for_one


def _has_heads_for_cudnn(call: _Call) -> bool:
    sizes = call.query.shape[-1], call.value.shape[-1]
    major, minor = machine.driver.capability
    if major in _CUDNN_FIRST[1:] and sizes == _BLACKWELL_HEADS:
        return True
    return max(sizes) <= (_LARGEST_HOPPER if (major, minor) == (9, 0) else _LARGEST_CUDNN)


def _attend_plainly(call: _Call) -> Any:
    query, key, value, mask, dropout, is_causal, scale, enable_gqa = call
    return _MATH(query, key, value, mask, dropout, is_causal, scale=scale, enable_gqa=enable_gqa)[0]


def _attend_flash(call: _Call) -> Any:
    """The result of the flash kernel. Heads are padded to a size that it takes, and the result is cut to their size."""
    size = call.query.shape[-1]
    missing = -size % _MULTIPLE_OF_HALF
    scale = size**-0.5 if call.scale is None and missing else call.scale
    tensors = [torch.nn.functional.pad(tensor, (0, missing)) if missing else tensor for tensor in call.tensors]
    output = _FLASH(*tensors, call.dropout, call.is_causal, scale=scale)[0]
    return output[..., :size] if missing else output


def _attend_efficient(call: _Call) -> Any:
    bias = _bias(call)
    if bias is not None:
        bias = _aligned(bias).expand(*call.query.shape[:-1], call.key.shape[-2])
    return _EFFICIENT(*call.tensors, bias, _needs_gradient(call), call.dropout, call.is_causal, scale=call.scale)[0]


def _attend_cudnn(call: _Call) -> Any:
    needs_gradient = _needs_gradient(call)
    return _CUDNN(*call.tensors, _bias(call), needs_gradient, call.dropout, call.is_causal, scale=call.scale)[0]


def _needs_gradient(call: _Call) -> bool:
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in call.tensors)


def _bias(call: _Call) -> Tensor | None:
    """The mask as a bias that is added to the products."""
    if call.mask is None or call.mask.dtype is not torch.bool:
        return call.mask if call.mask is None else call.mask.to(call.query.dtype)
    return torch.zeros_like(call.mask, dtype=call.query.dtype).masked_fill_(~call.mask, float("-inf"))


class _Backend(NamedTuple):
    """One way to attend."""

    is_enabled: Callable[[], bool]
    takes: Callable[[_Call], bool]
    attend: Callable[[_Call], Any]


#: The functions that compute a form of attention, by PyTorch's number of it (`SDPBackend`).
_BACKENDS: Final = {
    number: _Backend(is_enabled, takes, attend)
    for number, is_enabled, operator, takes, attend in (
        (0, private("torch._C._get_math_sdp_enabled") or (lambda: True), _MATH, lambda _: True, _attend_plainly),
        (1, private("torch._C._get_flash_sdp_enabled"), _FLASH, _takes_flash, _attend_flash),
        (2, private("torch._C._get_mem_efficient_sdp_enabled"), _EFFICIENT, _takes_efficient, _attend_efficient),
        (3, private("torch._C._get_cudnn_sdp_enabled"), _CUDNN, _takes_cudnn, _attend_cudnn),
    )
    if is_enabled is not None and operator is not None
}


def _aligned(bias: Tensor) -> Tensor:
    """The mask with rows that start at multiples of eight elements, as the memory-efficient operator needs them."""
    length = bias.shape[-1]
    if bias.stride(-1) == 1 and not any(stride % _ALIGNED for stride in bias.stride()[:-1]):
        return bias
    return torch.nn.functional.pad(bias, (0, _ALIGNED - length % _ALIGNED))[..., :length]


def _efficient(  # noqa: PLR0913
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    compute_log_sumexp: bool,  # noqa: FBT001
    _dropout_p: float = 0.0,
    is_causal: bool = False,  # noqa: FBT001, FBT002
    *,
    scale: float | None = None,
) -> Any:
    (output,) = _on_host(is_causal, scale)(query, key, value, bias)
    rows = -(-query.shape[2] // _PADDED) * _PADDED if compute_log_sumexp else 0
    return output, torch.zeros(*query.shape[:2], rows, device=query.device), *_seeds(query)


def _efficient_backward(grad: Tensor, *rest: Any, scale: float | None = None) -> Any:
    mask, *is_causal = rest[9:]
    *of_tensors, of_bias = gradients(_on_host(any(is_causal), scale), rest[:4], (grad,))
    return *map(_heads_inside, of_tensors), of_bias if mask[3] else None


def _flash(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    _dropout_p: float = 0.0,
    is_causal: bool = False,  # noqa: FBT001, FBT002
    *_: Any,
    scale: float | None = None,
) -> Any:
    (output,) = _on_host(is_causal, scale)(query, key, value)
    sums = torch.zeros(query.shape[:3], device=query.device)
    none = query.new_empty(0)
    return output, sums, None, None, query.shape[2], key.shape[2], *_seeds(query), none


def _flash_backward(grad: Tensor, *rest: Any, scale: float | None = None) -> Any:
    return tuple(map(_heads_inside, gradients(_on_host(rest[10], scale), rest[:3], (grad,))))


def _cudnn(  # noqa: PLR0913
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    compute_log_sumexp: bool,  # noqa: FBT001
    _dropout_p: float = 0.0,
    is_causal: bool = False,  # noqa: FBT001, FBT002
    *_: Any,
    scale: float | None = None,
) -> Any:
    (output,) = _on_host(is_causal, scale)(query, key, value, bias)
    sums = torch.zeros(*query.shape[:3], 1 if compute_log_sumexp else 0, device=query.device)
    output = torch.empty_like(query, dtype=output.dtype).copy_(output) if output.shape == query.shape else output
    return output, sums, None, None, query.shape[2], key.shape[2], *_seeds(query), None


def _cudnn_backward(grad: Tensor, *rest: Any, scale: float | None = None) -> Any:
    is_causal = rest[13]
    bias = rest[7]
    return tuple(gradients(_on_host(is_causal, scale), (*rest[:3], bias), (grad,))[:3])


def _on_host(is_causal: bool, scale: float | None) -> Callable[..., tuple[Tensor]]:  # noqa: FBT001
    """A function that computes the result on the CPU; it uses float32 products for all number formats."""

    def attend(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None = None) -> tuple[Tensor]:
        wide = [None if tensor is None else tensor.float() for tensor in (query, key, value, bias)]
        grouped = query.shape[1] != key.shape[1]
        output = _MATH(*wide, 0.0, is_causal and bias is None, scale=scale, enable_gqa=grouped)[0]
        return (_heads_inside(output.to(query.dtype)),)

    return attend


def _heads_inside(tensor: Tensor) -> Tensor:
    """In the order of memory that the fused operators give their results."""
    return tensor.transpose(1, 2).contiguous().transpose(1, 2)


def _seeds(query: Tensor) -> list[Tensor]:
    return [torch.zeros((), dtype=torch.int64, device=query.device) for _ in range(2)]


SUBSTITUTES: Final = substitute_table(
    ("_scaled_dot_product_efficient_attention", _efficient),
    ("_scaled_dot_product_efficient_attention_backward", _efficient_backward),
    ("_scaled_dot_product_flash_attention", _flash),
    ("_scaled_dot_product_flash_attention_backward", _flash_backward),
    ("_scaled_dot_product_cudnn_attention", _cudnn),
    ("_scaled_dot_product_cudnn_attention_backward", _cudnn_backward),
)
