"""Layers of LSTM, GRU and RNN as cuDNN runs them: one operator for all steps, with values from the CPU.

It is not known which tensors cuDNN keeps for the backward pass; here only the necessary ones are kept. Dropout between
layers draws anew in the backward pass. The cells of LSTM and GRU are those of `aten/src/ATen/native/cuda/RNN.cu`.
"""

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from steptrace.predict.on_host import gradients
from steptrace.predict.pytorch import aten, substitute_table
from steptrace.predict.tensor import is_virtual

_CUDNN: Final[Any] = aten("_cudnn_rnn")
#: By cuDNN's number of a kind of layer.
_KINDS: Final[tuple[Any, ...]] = (torch.rnn_relu, torch.rnn_tanh, torch.lstm, torch.gru)
_LSTM: Final = 2
#: The types for which PyTorch makes a buffer of weights.
_OF_CUDNN: Final = {torch.float16, torch.float32, torch.float64}
#: Values of a step and unit from which gradients are computed: gates, and the cell or the hidden part of a gate.
_KEPT: Final = (1, 1, 5, 4)


def _by_cudnn(mode: int) -> Callable[..., Any]:
    def layers(input: Any, *args: Any) -> Any:
        """In place of `torch.lstm` and the like: of padded sequences, or of packed ones with their batch sizes."""
        if not is_virtual(input) or _CUDNN is None:
            return _KINDS[mode](input, *args)
        sizes, args = ([], args) if isinstance(args[2], bool) else (args[0].tolist(), args[1:])
        state, weights, has_biases, count, dropout, train, bidirectional, *batch_first = args
        hx, cx = state if mode == _LSTM else (state, None)
        if torch.is_autocast_enabled("cuda"):
            dtype = torch.get_autocast_dtype("cuda")
            input, hx, cx = (None if tensor is None else tensor.to(dtype) for tensor in (input, hx, cx))
            torch.zeros(sum(weight.numel() for weight in weights), dtype=dtype, device=input.device)  # cuDNN's buffer
            weights = [weight.to(dtype) for weight in weights]
        hidden = (hx if cx is None else cx).shape[-1]
        projected = hx.shape[-1] if hx.shape[-1] != hidden else 0
        per_layer = (4 if has_biases else 2) + bool(projected)
        options = (mode, hidden, projected, count, any(batch_first), dropout, train, bidirectional, sizes, None)
        outputs = _CUDNN(input, weights, per_layer, None, hx, cx, *options)
        return outputs[: 3 if mode == _LSTM else 2]

    return layers


def flatten_parameters(layers: torch.nn.RNNBase) -> None:
    """In place of `nn.RNNBase.flatten_parameters`: copies the weights into a buffer, which takes their place in CUDA.

    Here they stay where they are, and the buffer is freed.
    """
    weights: list[Any] = list(layers._flat_weights)
    dtypes = {weight.dtype for weight in weights if is_virtual(weight)}
    all_there = all(map(is_virtual, weights)) and len({id(weight) for weight in weights}) == len(weights)
    if not all_there or not torch.backends.cudnn.enabled or len(dtypes) != 1 or not dtypes <= _OF_CUDNN:
        return
    with torch.no_grad():
        sizes = [weight.numel() for weight in weights]
        buffer = torch.zeros(sum(sizes), dtype=weights[0].dtype, device=weights[0].device)
        for weight, part in zip(weights, torch.split(buffer, sizes), strict=True):
            part.view(weight.shape).copy_(weight)


def _forward(input: Tensor, weights: Any, per_layer: int, _buffer: Any, hx: Tensor, cx: Any, *options: Any) -> Any:
    mode, hidden, *_, train, _bidirectional, _sizes, _state = options
    output, hy, *cy = _on_host(input, weights, per_layer, hx, cx, options)
    none = torch.empty(0, dtype=input.dtype, device=input.device)
    kept = _KEPT[mode] * hidden * (output.numel() // output.shape[-1]) * hx.shape[0] if train else 0
    reserve = torch.empty(kept * input.element_size(), dtype=torch.uint8, device=input.device)
    return output, hy, cy[0] if cy else none, reserve, none


def _backward(input: Tensor, weights: Any, per_layer: int, _buffer: Any, hx: Tensor, cx: Any, *rest: Any) -> Any:
    _output, *of_results = rest[:4]

    def layers(input: Tensor, hx: Tensor, cx: Any, *weights: Tensor) -> Any:
        return _on_host(input, weights, per_layer, hx, cx, rest[4:-2])

    of_input, of_hx, of_cx, *of_weights = gradients(layers, (input, hx, cx, *weights), of_results)
    return of_input, of_hx, of_cx, of_weights


def _on_host(input: Any, weights: Any, per_layer: int, hx: Any, cx: Any, options: Any) -> Any:
    mode, _, _, count, batch_first, dropout, train, bidirectional, sizes, _ = options
    settings = (list(weights), per_layer > 3, count, dropout, train, bidirectional)
    state = [hx, cx] if mode == _LSTM else hx
    if sizes:
        return _KINDS[mode](input, torch.tensor(sizes), state, *settings)
    return _KINDS[mode](input, state, *settings, batch_first)


def _of_lstm(gates: Tensor, cx: Tensor) -> tuple[Tensor, Tensor]:
    i, f, g, o = gates.chunk(4, dim=1)
    cy = f.sigmoid() * cx + i.sigmoid() * g.tanh()
    return o.sigmoid() * cy.tanh(), cy


def _lstm_cell(
    input_gates: Tensor, hidden_gates: Tensor, cx: Tensor, *biases: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    gates = sum((bias for bias in biases if bias is not None), input_gates + hidden_gates)
    return *_of_lstm(gates, cx), gates


def _lstm_cell_backward(
    grad_hy: Tensor | None, grad_cy: Tensor | None, cx: Tensor, _cy: Tensor, gates: Tensor, has_bias: Any
) -> tuple[Tensor, Tensor, Tensor | None]:
    of_gates, of_cx = gradients(_of_lstm, (gates, cx), (grad_hy, grad_cy))
    return of_gates, of_cx, of_gates.sum(0) if has_bias else None


def _of_gru(input: Tensor, hidden: Tensor, hx: Tensor) -> tuple[Tensor]:
    ri, zi, ni = input.chunk(3, dim=1)
    rh, zh, nh = hidden.chunk(3, dim=1)
    n = (ni + (ri + rh).sigmoid() * nh).tanh()
    return (n + (zi + zh).sigmoid() * (hx - n),)


def _gru_cell(
    input_gates: Tensor, hidden_gates: Tensor, hx: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    input = input_gates if b_ih is None else input_gates + b_ih
    hidden = hidden_gates if b_hh is None else hidden_gates + b_hh
    (hy,) = _of_gru(input, hidden, hx)
    size = 2 * hx.shape[1]
    return hy, torch.cat((input[:, :size] + hidden[:, :size], input[:, size:], hidden[:, size:], hx), dim=1)


def _gru_cell_backward(grad_hy: Tensor, workspace: Tensor, has_bias: Any) -> tuple[Tensor | None, ...]:
    size = workspace.shape[1] // 5
    gates, ni, nh, hx = workspace.tensor_split((2 * size, 3 * size, 4 * size), dim=1)
    input = torch.cat((gates, ni), dim=1)
    hidden = torch.cat((torch.zeros_like(gates), nh), dim=1)
    of_input, of_hidden, of_hx = gradients(_of_gru, (input, hidden, hx), (grad_hy,))
    d_b_ih, d_b_hh = (of_input.sum(0), of_hidden.sum(0)) if has_bias else (None, None)
    return of_input, of_hidden, of_hx, d_b_ih, d_b_hh


#: The replacements of functions.
REPLACED: Final[dict[Any, Callable[..., Any]]] = {kind: _by_cudnn(mode) for mode, kind in enumerate(_KINDS)}
SUBSTITUTES: Final = substitute_table(
    ("_cudnn_rnn", _forward),
    ("_cudnn_rnn_backward", _backward),
    ("_thnn_fused_lstm_cell", _lstm_cell),
    ("_thnn_fused_lstm_cell_backward_impl", _lstm_cell_backward),
    ("_thnn_fused_gru_cell", _gru_cell),
    ("_thnn_fused_gru_cell_backward", _gru_cell_backward),
)
