"""scaled_dot_product_attention as a GPU runs it: the fused operator that CUDA chooses, with values from the CPU.

The order of choice is that of `aten/src/ATen/native/transformers/cuda/sdp_utils.cpp`: flash attention in 16 bits
without a mask, else the memory-efficient one. Dropout inside of either is left out of the values.
"""

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from steptrace.predict.on_host import gradients
from steptrace.predict.tensor import LIMIT, is_virtual

_ATEN = torch.ops.aten
_PLAIN: Any = torch._C._nn.scaled_dot_product_attention
_EFFICIENT = _ATEN._scaled_dot_product_efficient_attention.default
_FLASH = _ATEN._scaled_dot_product_flash_attention.default
_HALF: Final = (torch.float16, torch.bfloat16)
#: The fused operators take heads of a multiple of so many elements, by their bytes, and flash attention up to 256.
_MULTIPLE: Final = {4: 4, 2: 8}
_FLASH_HEAD: Final = 256
#: The memory-efficient operator pads what it keeps for the backward pass to a multiple of this.
_PADDED: Final = 32
_ALIGNED: Final = 8


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
    """In place of `torch.nn.functional.scaled_dot_product_attention`; this device would take plain products."""
    if query.is_nested and query.device.type != "cpu":
        raise NotImplementedError(LIMIT.format("scaled_dot_product_attention of nested tensors", "pad them"))
    tensors = [query, key, value]
    if all(map(is_virtual, tensors)) and torch.is_autocast_enabled("cuda"):
        tensors = [tensor.to(torch.get_autocast_dtype("cuda")) for tensor in tensors]
    if enable_gqa or not all(map(_is_fused, tensors)):
        return _PLAIN(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)  # type: ignore[no-any-return]
    if attn_mask is None and tensors[0].dtype in _HALF and query.shape[-1] <= _FLASH_HEAD:
        return _FLASH(*tensors, dropout_p, is_causal, scale=scale)[0]  # type: ignore[no-any-return]
    bias = attn_mask
    if bias is not None:
        if bias.dtype is torch.bool:
            bias = torch.zeros_like(bias, dtype=tensors[0].dtype).masked_fill_(~bias, float("-inf"))
        bias = _aligned(bias.to(tensors[0].dtype)).expand(*query.shape[:-1], key.shape[-2])
    needs_gradient = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    return _EFFICIENT(*tensors, bias, needs_gradient, dropout_p, is_causal, scale=scale)[0]  # type: ignore[no-any-return]


def _aligned(bias: Tensor) -> Tensor:
    """The mask with rows that start at multiples of eight elements, as the memory-efficient operator needs them."""
    length = bias.shape[-1]
    if bias.stride(-1) == 1 and not any(stride % _ALIGNED for stride in bias.stride()[:-1]):
        return bias
    return torch.nn.functional.pad(bias, (0, _ALIGNED - length % _ALIGNED))[..., :length]


def _is_fused(tensor: Any) -> bool:
    multiple = _MULTIPLE.get(tensor.element_size()) if isinstance(tensor, Tensor) else None
    return (
        multiple is not None
        and is_virtual(tensor)
        and tensor.dim() == 4
        and tensor.numel() > 0
        and tensor.shape[-1] % multiple == 0
        and tensor.stride(-1) == 1
    )


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
    (made,) = _on_host(is_causal, scale)(query, key, value, bias)
    rows = -(-query.shape[2] // _PADDED) * _PADDED if compute_log_sumexp else 0
    return made, torch.zeros(*query.shape[:2], rows, device=query.device), *_seeds(query)


def _efficient_backward(grad: Tensor, *rest: Any, scale: float | None = None) -> Any:
    mask, *is_causal = rest[9:]
    *made, of_bias = gradients(_on_host(any(is_causal), scale), rest[:4], (grad,))
    return *map(_heads_inside, made), of_bias if mask[3] else None


def _flash(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    _dropout_p: float = 0.0,
    is_causal: bool = False,  # noqa: FBT001, FBT002
    *_: Any,
    scale: float | None = None,
) -> Any:
    (made,) = _on_host(is_causal, scale)(query, key, value)
    sums, none = torch.zeros(query.shape[:3], device=query.device), query.new_empty(0)
    return made, sums, None, None, query.shape[2], key.shape[2], *_seeds(query), none


def _flash_backward(grad: Tensor, *rest: Any, scale: float | None = None) -> Any:
    return tuple(map(_heads_inside, gradients(_on_host(rest[10], scale), rest[:3], (grad,))))


def _on_host(is_causal: bool, scale: float | None) -> Callable[..., tuple[Tensor]]:  # noqa: FBT001
    """What gives the result on the CPU, of any type by products of float32."""

    def attend(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None = None) -> tuple[Tensor]:
        wide = [None if one is None else one.float() for one in (query, key, value, bias)]
        made = _PLAIN(*wide, 0.0, is_causal and bias is None, scale=scale)
        return (_heads_inside(made.to(query.dtype)),)

    return attend


def _heads_inside(tensor: Tensor) -> Tensor:
    """In the order of memory that the fused operators give their results."""
    return tensor.transpose(1, 2).contiguous().transpose(1, 2)


def _seeds(query: Tensor) -> list[Tensor]:
    return [torch.zeros((), dtype=torch.int64, device=query.device) for _ in range(2)]


SUBSTITUTES: Final[dict[Any, Callable[..., Any]]] = {
    _EFFICIENT: _efficient,
    _ATEN._scaled_dot_product_efficient_attention_backward.default: _efficient_backward,
    _FLASH: _flash,
    _ATEN._scaled_dot_product_flash_attention_backward.default: _flash_backward,
}
