"""CPU forms of operators that PyTorch implements for GPUs only, and chooses for the virtual device.

The cells of LSTM and GRU, as in `aten/src/ATen/native/cuda/RNN.cu`. (A GPU mostly runs whole layers by cuDNN instead;
neither way waits.) And operators that count or add up whole numbers on GPUs only.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_ATEN = torch.ops.aten


def _lstm(
    input_gates: Tensor, hidden_gates: Tensor, cx: Tensor, *biases: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    gates = sum((bias for bias in biases if bias is not None), input_gates + hidden_gates)
    i, f, g, o = gates.chunk(4, dim=1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cy = f * cx + i * g
    return o * cy.tanh(), cy, torch.cat((i, f, g, o), dim=1)


def _lstm_backward(
    grad_hy: Tensor | None,
    grad_cy: Tensor | None,
    cx: Tensor,
    cy: Tensor,
    workspace: Tensor,
    has_bias: bool,  # noqa: FBT001
) -> tuple[Tensor, Tensor, Tensor | None]:
    i, f, g, o = workspace.chunk(4, dim=1)
    d_hy = torch.zeros_like(cy) if grad_hy is None else grad_hy
    squashed = cy.tanh()
    d_cy = d_hy * o * (1 - squashed * squashed) + (0 if grad_cy is None else grad_cy)
    d_gates = torch.cat(
        (d_cy * g * i * (1 - i), d_cy * cx * f * (1 - f), d_cy * i * (1 - g * g), d_hy * squashed * o * (1 - o)), dim=1
    )
    return d_gates, d_cy * f, d_gates.sum(0) if has_bias else None


def _gru(
    input_gates: Tensor, hidden_gates: Tensor, hx: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    ri, zi, ni = (input_gates if b_ih is None else input_gates + b_ih).chunk(3, dim=1)
    rh, zh, nh = (hidden_gates if b_hh is None else hidden_gates + b_hh).chunk(3, dim=1)
    r, z = (ri + rh).sigmoid(), (zi + zh).sigmoid()
    n = (ni + r * nh).tanh()
    return n + z * (hx - n), torch.cat((r, z, n, hx, nh), dim=1)


def _gru_backward(grad_hy: Tensor, workspace: Tensor, has_bias: bool) -> tuple[Tensor | None, ...]:  # noqa: FBT001
    r, z, n, hx, nh = workspace.chunk(5, dim=1)
    d_n = grad_hy * (1 - z) * (1 - n * n)
    d_z = grad_hy * (hx - n) * z * (1 - z)
    d_r = d_n * nh * r * (1 - r)
    d_input, d_hidden = torch.cat((d_r, d_z, d_n), dim=1), torch.cat((d_r, d_z, d_n * r), dim=1)
    d_b_ih, d_b_hh = (d_input.sum(0), d_hidden.sum(0)) if has_bias else (None, None)
    return d_input, d_hidden, grad_hy * z, d_b_ih, d_b_hh


def _histc(values: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """Of whole numbers too, which the CPU's does not count."""
    return torch.histc(values.double(), bins, min, max).to(values.dtype)


#: Operator -> what runs in its place.
SUBSTITUTES: dict[Any, Callable[..., Any]] = {
    _ATEN.histc.default: _histc,
    _ATEN._thnn_fused_lstm_cell.default: _lstm,
    _ATEN._thnn_fused_lstm_cell_backward_impl.default: _lstm_backward,
    _ATEN._thnn_fused_gru_cell.default: _gru,
    _ATEN._thnn_fused_gru_cell_backward.default: _gru_backward,
}
