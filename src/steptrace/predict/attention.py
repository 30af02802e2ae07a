"""scaled_dot_product_attention as a GPU runs it: the fused operator that CUDA chooses, with values from the CPU.

The order of choice is that of `aten/src/ATen/native/transformers/cuda/sdp_utils.cpp`: flash attention in 16 bits
without a mask, else the memory-efficient one. Dropout inside of either is left out of the values.
"""

import math
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from steptrace.predict.tensor import LIMIT, is_virtual

_ATEN = torch.ops.aten
_EFFICIENT = _ATEN._scaled_dot_product_efficient_attention.default
_EFFICIENT_BACKWARD = _ATEN._scaled_dot_product_efficient_attention_backward.default
_FLASH = _ATEN._scaled_dot_product_flash_attention.default
_FLASH_BACKWARD = _ATEN._scaled_dot_product_flash_attention_backward.default
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
        plain: Tensor = torch._C._nn.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
        return plain
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
    dropout_p: float = 0.0,
    is_causal: bool = False,  # noqa: FBT001, FBT002
    *,
    scale: float | None = None,
) -> Any:
    if query.is_meta:
        return _EFFICIENT(query, key, value, bias, compute_log_sumexp, dropout_p, is_causal, scale=scale)
    rows = -(-query.shape[2] // _PADDED) * _PADDED if compute_log_sumexp else 0
    kept = torch.zeros(*query.shape[:2], rows)
    return _heads_inside(_weights(query, key, bias, is_causal, scale) @ value), kept, *_seeds()


def _efficient_backward(  # noqa: PLR0913
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    out: Tensor,
    kept: Tensor,
    seed: Tensor,
    offset: Tensor,
    dropout_p: float,
    mask: list[bool],
    is_causal: bool = False,  # noqa: FBT001, FBT002
    *,
    scale: float | None = None,
) -> Any:
    if query.is_meta:
        rest = (bias, out, kept, seed, offset, dropout_p, mask, is_causal)
        return _EFFICIENT_BACKWARD(grad, query, key, value, *rest, scale=scale)
    *gradients, of_scores = _gradients(grad, query, key, value, bias, is_causal, scale)
    return *gradients, of_scores.to(query.dtype) if mask[3] else None


def _flash(  # noqa: PLR0913
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,  # noqa: FBT001, FBT002
    return_debug_mask: bool = False,  # noqa: FBT001, FBT002
    *,
    scale: float | None = None,
) -> Any:
    if query.is_meta:
        return _FLASH(query, key, value, dropout_p, is_causal, return_debug_mask, scale=scale)
    made = _heads_inside(_weights(query, key, None, is_causal, scale) @ value)
    none = torch.empty(0, dtype=query.dtype)
    return made, torch.zeros(query.shape[:3]), None, None, query.shape[2], key.shape[2], *_seeds(), none


def _flash_backward(grad: Tensor, query: Tensor, key: Tensor, value: Tensor, *rest: Any, scale: Any = None) -> Any:
    if query.is_meta:
        return _FLASH_BACKWARD(grad, query, key, value, *rest, scale=scale)
    is_causal = rest[7]
    return _gradients(grad, query, key, value, None, is_causal, scale)[:3]


def _weights(query: Tensor, key: Tensor, bias: Tensor | None, is_causal: Any, scale: float | None) -> Tensor:
    """The softmax of the scores, in the inputs' type."""
    scores = (query.float() @ key.float().mT) * _scale(query, scale)
    if bias is not None:
        scores = scores + bias
    if is_causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -math.inf)
    return scores.softmax(-1).nan_to_num().to(query.dtype)


def _gradients(  # noqa: PLR0913
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, is_causal: Any, scale: float | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    weights, of_result = _weights(query, key, bias, is_causal, scale).float(), grad.float()
    of_weights = of_result @ value.float().mT
    of_scores = weights * (of_weights - (weights * of_weights).sum(-1, keepdim=True))
    scaled = of_scores * _scale(query, scale)
    made = (scaled @ key.float(), scaled.mT @ query.float(), weights.mT @ of_result)
    of_query, of_key, of_value = (_heads_inside(one.to(query.dtype)) for one in made)
    return of_query, of_key, of_value, of_scores


def _scale(query: Tensor, scale: float | None) -> float:
    return 1 / math.sqrt(query.shape[-1]) if scale is None else scale


def _heads_inside(tensor: Tensor) -> Tensor:
    """In the order of memory that the fused operators give their results."""
    return tensor.transpose(1, 2).contiguous().transpose(1, 2)


def _seeds() -> tuple[Tensor, Tensor]:
    return torch.zeros((), dtype=torch.int64), torch.zeros((), dtype=torch.int64)


SUBSTITUTES: Final[dict[Any, Callable[..., Any]]] = {
    _EFFICIENT: _efficient,
    _EFFICIENT_BACKWARD: _efficient_backward,
    _FLASH: _flash,
    _FLASH_BACKWARD: _flash_backward,
}
