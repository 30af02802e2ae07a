"""Operators of `nn.SyncBatchNorm`, which have kernels for GPUs only: on the CPU by their formulas.

A channel is the second dimension of the values. Statistics of 16-bit values have 32 bits.
"""

from typing import Final

import torch
from torch import Tensor

from steptrace.predict.pytorch import substitute_table


def _wide(values: Tensor) -> Tensor:
    """Values of 16 bits in 32."""
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


def _over_channels(values: Tensor) -> list[int]:
    """All dimensions except that of the channels."""
    return [dim for dim in range(values.dim()) if dim != 1]


def _along(of_channels: Tensor, values: Tensor) -> Tensor:
    """One number per channel, in as many dimensions as the values have."""
    return of_channels.view(1, -1, *[1] * (values.dim() - 2))


def _stats(values: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Mean and inverse deviation of each channel."""
    variance, mean = torch.var_mean(_wide(values), _over_channels(values), correction=0)
    return mean, (variance + eps).rsqrt()


def _gather_stats(  # noqa: PLR0913 - the operator's own
    _values: Tensor,
    means: Tensor,
    inverses: Tensor,
    running_mean: Tensor | None,
    running_variance: Tensor | None,
    momentum: float,
    eps: float,
    counts: Tensor,
) -> tuple[Tensor, Tensor]:
    """Mean and inverse deviation over all processes, from a row of each; running statistics follow them."""
    shares = counts.to(means.dtype).view(-1, 1)
    count = shares.sum()
    mean = (means * shares).sum(0) / count
    variance = ((inverses**-2 - eps + (means - mean) ** 2) * shares).sum(0) / count
    if running_mean is not None:
        running_mean.lerp_(mean.to(running_mean.dtype), momentum)
    if running_variance is not None:
        unbiased = variance * (count / (count - 1))
        running_variance.lerp_(unbiased.to(running_variance.dtype), momentum)
    return mean, (variance + eps).rsqrt()


def _normalised(values: Tensor, mean: Tensor, inverse: Tensor) -> Tensor:
    return (_wide(values) - _along(mean, values)) * _along(inverse, values)


def _apply(
    values: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, inverse: Tensor, _eps: float
) -> Tensor:
    output = _normalised(values, mean, inverse)
    output = output if weight is None else output * _along(weight, values)
    output = output if bias is None else output + _along(bias, values)
    return output.to(values.dtype)


def _reduce_gradients(  # noqa: PLR0913
    gradient: Tensor,
    values: Tensor,
    mean: Tensor,
    inverse: Tensor,
    weight: Tensor | None,
    of_values: bool,  # noqa: FBT001
    of_weight: bool,  # noqa: FBT001
    of_bias: bool,  # noqa: FBT001
) -> tuple[Tensor | None, ...]:
    """The sums of the gradient, and of its product with the deviation; gradients of weight and bias."""
    wide = _wide(gradient)
    total = wide.sum(_over_channels(values))
    weighted = (wide * (_wide(values) - _along(mean, values))).sum(_over_channels(values))
    dtype = total.dtype if weight is None else weight.dtype
    return (
        total if of_values else None,
        weighted if of_values else None,
        (weighted * inverse).to(dtype) if of_weight else None,
        total.to(dtype) if of_bias else None,
    )


def _gradient_of_values(  # noqa: PLR0913
    gradient: Tensor,
    values: Tensor,
    mean: Tensor,
    inverse: Tensor,
    weight: Tensor | None,
    total: Tensor,
    weighted: Tensor,
    counts: Tensor,
) -> Tensor:
    count = counts.sum().to(total.dtype)
    of_deviation = _normalised(values, mean, inverse) * _along(inverse * weighted / count, values)
    factor = inverse if weight is None else inverse * weight
    of_values = (_wide(gradient) - _along(total / count, values) - of_deviation) * _along(factor, values)
    return of_values.to(values.dtype)


SUBSTITUTES: Final = substitute_table(
    ("batch_norm_stats", _stats),
    ("batch_norm_gather_stats_with_counts", _gather_stats),
    ("batch_norm_elemt", _apply),
    ("batch_norm_backward_reduce", _reduce_gradients),
    ("batch_norm_backward_elemt", _gradient_of_values),
)
