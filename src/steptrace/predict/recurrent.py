"""Layers of LSTM, GRU and RNN as cuDNN runs them: one operator for all steps, with values from the CPU.

What cuDNN keeps for the backward pass is not known; here it is what has to be kept. Dropout between layers draws anew
in the backward pass. The cells of LSTM and GRU are as in `aten/src/ATen/native/cuda/RNN.cu`.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import torch
from torch import Tensor

from steptrace.predict.tensor import is_virtual

_ATEN = torch.ops.aten
#: By cuDNN's number of a kind of layer.
_KINDS: Final[tuple[Any, ...]] = (torch.rnn_relu, torch.rnn_tanh, torch.lstm, torch.gru)
_LSTM: Final = 2
#: Values of a step and unit from which gradients are computed: gates, and the cell or the hidden part of a gate.
_KEPT: Final = (1, 1, 5, 4)


def _by_cudnn(mode: int) -> Callable[..., Any]:
    def layers(input: Any, *args: Any) -> Any:
        """In place of `torch.lstm` and the like: of padded sequences, or of packed ones with their batch sizes."""
        if not is_virtual(input):
            return _KINDS[mode](input, *args)
        sizes, args = ([], args) if isinstance(args[2], bool) else (args[0].tolist(), args[1:])
        state, weights, has_biases, count, dropout, train, bidirectional, *batch_first = args
        hx, cx = state if mode == _LSTM else (state, None)
        if torch.is_autocast_enabled("cuda"):
            dtype = torch.get_autocast_dtype("cuda")
            input, hx, cx = (None if one is None else one.to(dtype) for one in (input, hx, cx))
            torch.zeros(sum(weight.numel() for weight in weights), dtype=dtype, device=input.device)  # cuDNN's buffer
            weights = [weight.to(dtype) for weight in weights]
        hidden = (hx if cx is None else cx).shape[-1]
        projected = hx.shape[-1] if hx.shape[-1] != hidden else 0
        per_layer = (4 if has_biases else 2) + bool(projected)
        options = (mode, hidden, projected, count, any(batch_first), dropout, train, bidirectional, sizes, None)
        made = _ATEN._cudnn_rnn.default(input, weights, per_layer, None, hx, cx, *options)
        return made[: 3 if mode == _LSTM else 2]

    return layers


def _forward(input: Tensor, weights: Any, per_layer: int, _buffer: Any, hx: Tensor, cx: Any, *options: Any) -> Any:
    mode, hidden, *_, train, _bidirectional, _sizes, _state = options
    output, hy, *cy = _on_host(input, weights, per_layer, hx, cx, options)
    none = torch.empty(0, dtype=input.dtype, device=input.device)
    kept = _KEPT[mode] * hidden * (output.numel() // output.shape[-1]) * hx.shape[0] if train else 0
    reserve = torch.empty(kept * input.element_size(), dtype=torch.uint8, device=input.device)
    return output, hy, cy[0] if cy else none, reserve, none


def _backward(input: Tensor, weights: Any, per_layer: int, _buffer: Any, hx: Tensor, cx: Any, *rest: Any) -> Any:
    _output, *gradients, _reserve, _mask = rest[:4] + rest[-2:]
    options = rest[4:-2]

    def gradients_of() -> Any:
        given = [None if one is None else one.detach().requires_grad_() for one in (input, hx, cx, *weights)]
        made = _on_host(given[0], given[3:], per_layer, given[1], given[2], options)
        pairs = [pair for pair in zip(made, gradients, strict=False) if pair[1] is not None]
        leaves = [one for one in given if one is not None]
        results, of_results = zip(*pairs, strict=True)
        of_leaves = iter(torch.autograd.grad(results, leaves, of_results, allow_unused=True))
        return [None if one is None else next(of_leaves) for one in given]

    with ThreadPoolExecutor(1) as thread:  # below a dispatch, no thread's autograd records
        of_input, of_hx, of_cx, *of_weights = thread.submit(gradients_of).result()
    return of_input, of_hx, of_cx, of_weights


def _on_host(input: Any, weights: Any, per_layer: int, hx: Any, cx: Any, options: Any) -> Any:
    mode, _, _, count, batch_first, dropout, train, bidirectional, sizes, _ = options
    settings = (list(weights), per_layer > 3, count, dropout, train, bidirectional)
    state = [hx, cx] if mode == _LSTM else hx
    if sizes:
        return _KINDS[mode](input, torch.tensor(sizes), state, *settings)
    return _KINDS[mode](input, state, *settings, batch_first)


def _lstm_cell(
    input_gates: Tensor, hidden_gates: Tensor, cx: Tensor, *biases: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    gates = sum((bias for bias in biases if bias is not None), input_gates + hidden_gates)
    i, f, g, o = gates.chunk(4, dim=1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cy = f * cx + i * g
    return o * cy.tanh(), cy, torch.cat((i, f, g, o), dim=1)


def _lstm_cell_backward(
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


def _gru_cell(
    input_gates: Tensor, hidden_gates: Tensor, hx: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    ri, zi, ni = (input_gates if b_ih is None else input_gates + b_ih).chunk(3, dim=1)
    rh, zh, nh = (hidden_gates if b_hh is None else hidden_gates + b_hh).chunk(3, dim=1)
    r, z = (ri + rh).sigmoid(), (zi + zh).sigmoid()
    n = (ni + r * nh).tanh()
    return n + z * (hx - n), torch.cat((r, z, n, hx, nh), dim=1)


def _gru_cell_backward(grad_hy: Tensor, workspace: Tensor, has_bias: bool) -> tuple[Tensor | None, ...]:  # noqa: FBT001
    r, z, n, hx, nh = workspace.chunk(5, dim=1)
    d_n = grad_hy * (1 - z) * (1 - n * n)
    d_z = grad_hy * (hx - n) * z * (1 - z)
    d_r = d_n * nh * r * (1 - r)
    d_input, d_hidden = torch.cat((d_r, d_z, d_n), dim=1), torch.cat((d_r, d_z, d_n * r), dim=1)
    d_b_ih, d_b_hh = (d_input.sum(0), d_hidden.sum(0)) if has_bias else (None, None)
    return d_input, d_hidden, grad_hy * z, d_b_ih, d_b_hh


#: What is called in place of a function.
REPLACED: Final[dict[Any, Callable[..., Any]]] = {kind: _by_cudnn(mode) for mode, kind in enumerate(_KINDS)}
SUBSTITUTES: Final[dict[Any, Callable[..., Any]]] = {
    _ATEN._cudnn_rnn.default: _forward,
    _ATEN._cudnn_rnn_backward.default: _backward,
    _ATEN._thnn_fused_lstm_cell.default: _lstm_cell,
    _ATEN._thnn_fused_lstm_cell_backward_impl.default: _lstm_cell_backward,
    _ATEN._thnn_fused_gru_cell.default: _gru_cell,
    _ATEN._thnn_fused_gru_cell_backward.default: _gru_cell_backward,
}
