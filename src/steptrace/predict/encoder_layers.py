"""The fast path of attention and encoder layers of torch.nn in inference, by the operators that it launches.

Modules take it without gradients, in evaluation, with `batch_first`. They ask first whether a tensor or a mode replaces
functions, as modes of a prediction do. PyTorch's C++ then calls what
`aten/src/ATen/native/transformers/cuda/attention.cu` and `.../transformer.cpp` call.
"""

import sys
from collections.abc import Callable
from typing import Any, Final

from torch import Tensor, nn
from torch.nn import functional

from steptrace.predict.attention import attention, is_fused
from steptrace.predict.backend import Replacements
from steptrace.predict.pytorch import aten, replacing
from steptrace.predict.tensor import is_virtual
from steptrace.torch_names import private

_ATTENTION: Final = private("torch._native_multi_head_attention")
_LAYER: Final = private("torch._transformer_encoder_layer_fwd")
_SPLIT_QKV: Final[Any] = private("torch._transform_bias_rescale_qkv")
_MASKED_SOFTMAX: Final[Any] = private("torch._masked_softmax")
_ACTIVATED: Final[Any] = private("torch._addmm_activation")
#: The modes that replace functions in this thread: how many there are, and the innermost one.
_MODES: Final[Any] = private("torch._C._len_torch_function_stack")
_POP: Final[Any] = private("torch._C._pop_torch_function_stack")
_PUSH: Final[Any] = private("torch._C._push_on_torch_function_stack")
#: Widths of heads that a fused kernel is asked for.
_MULTIPLE: Final = 8
#: An encoder asks before it makes a nested tensor of padded sequences, which the device lacks.
_ENCODER: Final = nn.TransformerEncoder.forward.__code__


def replacements() -> Replacements:
    """The replacement of `has_torch_function`, by which modules ask whether functions are replaced."""
    return {} if not REPLACED else replacing("torch.overrides.has_torch_function", _ours_do_not_count)


def _ours_do_not_count(asked: Callable[[Any], bool]) -> Callable[[Any], bool]:
    def has_torch_function(tensors: Any) -> bool:
        is_of_layer = sys._getframe(1).f_code is not _ENCODER
        # A mode of the program's, such as a default device, counts as on CUDA.
        if not is_of_layer or not any(map(is_virtual, tensors)) or _MODES() != 1:
            return asked(tensors)
        mode = _POP()
        try:
            return asked(tensors)
        finally:
            _PUSH(mode)

    return has_torch_function


def _self_attention(query: Tensor, key: Tensor, value: Tensor, *rest: Any, **options: Any) -> Any:
    if not is_virtual(query):
        return _ATTENTION(query, key, value, *rest, **options)
    return _attended(attention, query, *rest, **options)


def _attended(  # noqa: PLR0913
    attend: Callable[..., Tensor],
    query: Tensor,
    width: int,
    heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    weight: Tensor,
    bias: Tensor,
    mask: Tensor | None = None,
    need_weights: bool = True,  # noqa: FBT001, FBT002
    average_attn_weights: bool = True,  # noqa: FBT001, FBT002
    mask_type: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Attention of a sequence to itself as CUDA computes it; `attend` is the fused attention."""
    n = query.shape[0]
    t = query.shape[1]
    of_head = width // heads
    if not need_weights and mask is None and of_head % _MULTIPLE == 0:
        of_heads = query.view(n, t, heads, of_head).transpose(1, 2)
        if is_fused(of_heads, of_heads, of_heads):
            qkv = functional.linear(query, qkv_weight, qkv_bias).chunk(3, -1)
            q, k, v = (part.view(n, t, heads, of_head).transpose(1, 2) for part in qkv)
            attended = attend(q, k, v)
            return functional.linear(attended.transpose(1, 2).reshape(n, t, width), weight, bias), None
    projected = query.reshape(n * t, width).mm(qkv_weight.t()).view(n, t, 3 * width)
    q, k, v = (part.view(n * heads, t, of_head) for part in _SPLIT_QKV(projected, qkv_bias, heads))
    scores = q.bmm(k.transpose(1, 2)).view(n, heads, t, t)
    scores = scores.softmax(-1) if mask is None else _MASKED_SOFTMAX(scores, mask.bool(), 3, mask_type)
    attended = scores.view(n * heads, t, t).bmm(v).view(n, heads, t, of_head).transpose(1, 2).contiguous()
    output = bias.addmm(attended.view(n * t, width), weight.t()).view(n, t, width)
    if not need_weights:
        return output, None
    return output, scores.sum(1).div_(heads) if average_attn_weights else scores


def _layer(source: Tensor, *rest: Any, **options: Any) -> Any:
    if not is_virtual(source):
        return _LAYER(source, *rest, **options)
    return _layer_on_device(attention, source, *rest, **options)


def _layer_on_device(  # noqa: PLR0913
    attend: Callable[..., Tensor],
    source: Tensor,
    width: int,
    heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    weight: Tensor,
    bias: Tensor,
    use_gelu: bool,  # noqa: FBT001
    norm_first: bool,  # noqa: FBT001
    eps: float,
    *parameters: Any,
) -> Tensor:
    norm_1 = parameters[:2]
    norm_2 = parameters[2:4]
    up, up_bias, down, down_bias = parameters[4:8]

    def normed(x: Tensor, of_norm: Any) -> Tensor:
        weight, bias = of_norm
        return functional.layer_norm(x, (width,), weight, bias, eps)

    mask, mask_type = (*parameters[8:], None, None)[:2]
    x = normed(source, norm_1) if norm_first else source
    x = _attended(
        attend, x, width, heads, qkv_weight, qkv_bias, weight, bias, mask, need_weights=False, mask_type=mask_type
    )[0]
    x = x.add_(source)
    x = x if norm_first else normed(x, norm_1)
    inner = (normed(x, norm_2) if norm_first else x).reshape(-1, width)
    inner = _ACTIVATED(up_bias, inner, up.t(), use_gelu=use_gelu)
    x = down_bias.addmm(inner, down.t()).view(x.shape).add_(x)
    return x if norm_first else normed(x, norm_2)


def _attention_on_device(attend: Callable[..., Tensor], query: Tensor, _key: Tensor, _value: Tensor, *rest: Any) -> Any:
    return _attended(attend, query, *rest)


#: The replacements of functions; none in a PyTorch that lacks one of the names.
REPLACED: Final[dict[Any, Callable[..., Any]]] = (
    {_ATTENTION: _self_attention, _LAYER: _layer}
    if None not in (_ATTENTION, _LAYER, _SPLIT_QKV, _MASKED_SOFTMAX, _ACTIVATED, _MODES, _POP, _PUSH)
    else {}
)
#: What the operators launch on fake tensors, by operator; their first argument is the attention to use.
OPERATORS: Final = {
    operator: form
    for operator, form in (
        (aten("_transformer_encoder_layer_fwd"), _layer_on_device),
        (aten("_native_multi_head_attention"), _attention_on_device),
    )
    if operator is not None and REPLACED
}
