"""What the virtual device needs of CUDA: CPU forms of operators that PyTorch implements for GPUs only, and autocast.

The cells of LSTM and GRU are as in `aten/src/ATen/native/cuda/RNN.cu`. Other operators count or add up whole numbers
on GPUs only.

Autocast makes the casts that CUDA's autocast makes, for the operators that training uses. A cast on the device waits
for nothing, so this matters to dtypes, values and operator counts, not to syncs. Source of the lists:
`aten/src/ATen/autocast_mode.h` (AT_FORALL_LOWER_PRECISION_FP and the fp32 lists).
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.library import Library

from steptrace.predict import attention, backend, convolution, fused, recurrent
from steptrace.predict.tensor import is_virtual, map_tensors

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


def _unscale(gradients: list[Tensor], found_inf: Tensor, inverse_scale: Tensor) -> None:
    """Says that all gradients are finite: the step followed is one that trains, not one that only lowers the scale.

    What is not finite becomes 0, or the weights and every later loss would be NaN.
    """
    _ATEN._amp_foreach_non_finite_check_and_unscale_(gradients, found_inf, inverse_scale)
    found_inf.zero_()
    for gradient in gradients:
        gradient.nan_to_num_(0, 0, 0)


def _zeros(size: Any, **options: Any) -> Tensor:
    """Zeros that have memory: those without, of forward-mode derivatives, know PyTorch's own devices only."""
    return torch.zeros(size, **options)


def _in_own_type(operator: Any) -> Callable[..., Any]:
    """Not float32 in float64: so PyTorch adds up in `renorm`'s backward pass for every device but CUDA's own."""

    def run(values: Tensor, *args: Any, dtype: torch.dtype | None = None, **options: Any) -> Any:
        if dtype is torch.float64 and values.dtype is torch.float32:
            node: Any = torch._C._current_autograd_node()
            dtype = None if node is not None and node.name() == "RenormBackward0" else dtype
        return operator(values, *args, dtype=dtype, **options)

    return run


#: Operator -> what runs in its place.
SUBSTITUTES: dict[Any, Callable[..., Any]] = {
    _ATEN.histc.default: _histc,
    **{one: _in_own_type(one) for one in (_ATEN.linalg_vector_norm.default, _ATEN.sum.dim_IntList)},
    _ATEN._efficientzerotensor.default: _zeros,
    _ATEN._thnn_fused_lstm_cell.default: _lstm,
    _ATEN._thnn_fused_lstm_cell_backward_impl.default: _lstm_backward,
    _ATEN._thnn_fused_gru_cell.default: _gru,
    _ATEN._thnn_fused_gru_cell_backward.default: _gru_backward,
    _ATEN._amp_foreach_non_finite_check_and_unscale_.default: _unscale,
    **attention.SUBSTITUTES,
    **convolution.SUBSTITUTES,
    **fused.SUBSTITUTES,
    **recurrent.SUBSTITUTES,
}


#: Run in autocast's dtype: matrix products and convolutions.
LOWER_PRECISION = (
    "_convolution.deprecated", "_convolution", "conv1d", "conv1d.padding", "conv2d", "conv2d.padding", "conv3d",
    "conv3d.padding", "conv_transpose1d", "conv_transpose2d.input", "conv_transpose3d.input", "convolution", "prelu",
    "addmm", "addmv", "addr", "matmul", "einsum", "mm", "mv", "linalg_vecdot", "linear", "addbmm", "baddbmm", "bmm",
    "chain_matmul", "linalg_multi_dot", "scaled_dot_product_attention",
)  # fmt: skip
#: Run in float32, because they lose too much in 16 bits.
FLOAT32 = (
    "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt", "sinh",
    "tan", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "softplus", "layer_norm", "native_layer_norm",
    "group_norm", "nuclear_norm", "cosine_similarity", "poisson_nll_loss", "cosine_embedding_loss", "nll_loss",
    "nll_loss2d", "hinge_embedding_loss", "kl_div", "l1_loss", "smooth_l1_loss", "huber_loss", "mse_loss",
    "margin_ranking_loss", "multilabel_margin_loss", "soft_margin_loss", "triplet_margin_loss", "multi_margin_loss",
    "binary_cross_entropy_with_logits", "dist", "pdist", "cdist", "renorm", "logsumexp", "norm.Scalar",
)  # fmt: skip
#: Give float32 without a cast before them, unless a program names their result's type.
FLOAT32_RESULT = ("prod", "softmax.int", "log_softmax.int", "cumprod", "cumsum", "sum", "sum.dim_IntList")

_AUTOCAST = "AutocastPrivateUse1"
_libraries: list[Library] = []  # keeps the registrations alive


def _casting(name: str, dtype: torch.dtype | None) -> Any:
    packet, _, overload = name.partition(".")
    op = getattr(getattr(torch.ops.aten, packet), overload or "default")
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)  # type: ignore[attr-defined]

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(keys):
            target = torch.get_autocast_dtype(backend.DEVICE_TYPE) if dtype is None else dtype

            def cast(value: Any) -> Any:
                eligible = is_virtual(value) and value.is_floating_point() and value.dtype != torch.float64
                return value.to(target) if eligible else value

            return op(*map_tensors(cast, args), **{k: map_tensors(cast, v) for k, v in kwargs.items()})

    return kernel


def _with_float32_result(name: str) -> Any:
    packet, _, overload = name.partition(".")
    op = getattr(getattr(torch.ops.aten, packet), overload or "default")
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)  # type: ignore[attr-defined]

    def kernel(tensor: Tensor, *args: Any, dtype: torch.dtype | None = None, **kwargs: Any) -> Any:
        named = dtype is not None or any(isinstance(value, torch.dtype) for value in args)
        with torch._C._ExcludeDispatchKeyGuard(keys):
            if named or not tensor.is_floating_point() or tensor.dtype == torch.float64:
                return op(tensor, *args, **kwargs) if dtype is None else op(tensor, *args, dtype=dtype, **kwargs)
            return op(tensor, *args, dtype=torch.float32, **kwargs)

    return kernel


def ensure_registered() -> None:
    """Register the casts for the virtual device unless this process has done so."""
    if _libraries:
        return
    # Unlike other devices, PrivateUse1 has no fallthrough for the operators that autocast leaves alone.
    every, aten = Library("_", "IMPL"), Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    every.fallback(torch.library.fallthrough_kernel, _AUTOCAST)  # type: ignore[no-untyped-call]
    _libraries.extend((every, aten))
    for names, dtype in ((LOWER_PRECISION, None), (FLOAT32, torch.float32)):
        for name in names:
            if hasattr(torch.ops.aten, name.partition(".")[0]):
                aten.impl(name, _casting(name, dtype), _AUTOCAST)  # type: ignore[no-untyped-call]
    for name, kernel in fused.KERNELS.items():
        aten.impl(name, kernel, "AutogradPrivateUse1")  # type: ignore[no-untyped-call]
    for name in FLOAT32_RESULT:
        aten.impl(name, _with_float32_result(name), _AUTOCAST)  # type: ignore[no-untyped-call]
