"""Autocast on the virtual device: the casts that CUDA's autocast makes, for the operators that training uses.

A cast on the device waits for nothing, so this matters to dtypes, values and operator counts, not to syncs. A weight is
cast once in a context, however often it is used there. Source of the lists and of the rule for weights:
`aten/src/ATen/autocast_mode.h` and `.cpp` (AT_FORALL_LOWER_PRECISION_FP, the fp32 lists, cached_cast).
"""

import weakref
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor
from torch.library import Library

from steptrace.predict.backend import DEVICE_TYPE
from steptrace.predict.pytorch import aten, dispatch_key
from steptrace.predict.tensor import is_virtual, map_tensors
from steptrace.torch_names import private

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
#: Operators that return float32 without a cast of their inputs, unless the program names the type of the result.
FLOAT32_RESULT = ("prod", "softmax.int", "log_softmax.int", "cumprod", "cumsum", "sum", "sum.dim_IntList")

_AUTOCAST = "AutocastPrivateUse1"
_KEY_SET: Any = private("torch._C.DispatchKeySet")
_KEY = dispatch_key(_AUTOCAST)
_KEYS: Any = None if _KEY_SET is None or _KEY is None else _KEY_SET(_KEY)
_WITHOUT_KEYS: Any = private("torch._C._ExcludeDispatchKeyGuard")
_libraries: list[Library] = []  # keeps the registrations alive
#: The weights that were cast in the present context, by their `id`, with the cast.
_cast_weights: Final[dict[int, tuple["weakref.ref[Tensor]", Tensor]]] = {}


def _casting(name: str, dtype: torch.dtype | None) -> Any:
    op = aten(name)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with _WITHOUT_KEYS(_KEYS):
            target = torch.get_autocast_dtype(DEVICE_TYPE) if dtype is None else dtype

            def cast(value: Any) -> Any:
                eligible = _is_on_device(value) and value.is_floating_point() and value.dtype != torch.float64
                if not eligible:
                    return value
                is_kept = dtype is None and _is_kept(value) and value.dtype != target
                return _cast_once(value, target) if is_kept else value.to(target)

            return op(*map_tensors(cast, args), **{k: map_tensors(cast, v) for k, v in kwargs.items()})

    return kernel


def _is_kept(tensor: Tensor) -> bool:
    """Whether autocast keeps the cast of a tensor until its context ends: it does so for weights."""
    is_weight = tensor.requires_grad and tensor.is_leaf and not tensor._is_view()
    return is_weight and tensor.dtype == torch.float32 and is_virtual(tensor) and torch.is_autocast_cache_enabled()


def _cast_once(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """The cast of a weight; the one that was made before in this context, if there is one."""
    # As in PyTorch, the cast is found by its weight alone: a nested context with another type gets it, too.
    of_weight, cast = _cast_weights.get(id(weight), (None, weight))
    if of_weight is None or of_weight() is not weight:
        # Later uses may need its gradient, even if this one does not.
        with torch.inference_mode(mode=False), torch.enable_grad():
            cast = weight.to(dtype)
        _cast_weights[id(weight)] = weakref.ref(weight), cast
    return cast


def _is_on_device(value: Any) -> bool:
    """Whether a tensor lies on the virtual device, as one without values may while code is compiled."""
    return is_virtual(value) or (isinstance(value, Tensor) and value.device.type == DEVICE_TYPE)


def _with_float32_result(name: str) -> Any:
    op = aten(name)

    def kernel(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        named = any(isinstance(value, torch.dtype) for value in (*args, *kwargs.values()))
        if not named and tensor.is_floating_point() and tensor.dtype != torch.float64:
            kwargs["dtype"] = torch.float32
        with _WITHOUT_KEYS(_KEYS):
            return op(tensor, *args, **kwargs)

    return kernel


def ensure_registered() -> None:
    """Register the casts for the virtual device unless this process has done so."""
    if _libraries or _KEYS is None or _WITHOUT_KEYS is None:
        return
    # Unlike other devices, PrivateUse1 has no fallthrough for the operators that autocast leaves alone.
    all_operators = Library("_", "IMPL")  # type: ignore[no-untyped-call]
    casts = Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    all_operators.fallback(torch.library.fallthrough_kernel, _AUTOCAST)  # type: ignore[no-untyped-call]
    _libraries.extend((all_operators, casts))
    for names, dtype in ((LOWER_PRECISION, None), (FLOAT32, torch.float32)):
        for name in filter(aten, names):
            casts.impl(name, _casting(name, dtype), _AUTOCAST)  # type: ignore[no-untyped-call]
    for name in filter(aten, FLOAT32_RESULT):
        casts.impl(name, _with_float32_result(name), _AUTOCAST)  # type: ignore[no-untyped-call]


def replacements() -> dict[tuple[Any, str], Any]:
    """Let autocast's functions mean the virtual device by "cuda", which is also their default."""
    _cast_weights.clear()
    functions = ("is_autocast_enabled", "get_autocast_dtype", "set_autocast_enabled", "set_autocast_dtype")
    return {
        (torch, "clear_autocast_cache"): _clearing(torch.clear_autocast_cache),
        **{(torch, name): _by_device_type(getattr(torch, name)) for name in functions},
    }


def _clearing(clear: Callable[[], None]) -> Callable[[], None]:
    """`torch.clear_autocast_cache`, which the end of the outermost context calls."""

    def cleared() -> None:
        _cast_weights.clear()
        clear()

    return cleared


def _device_type(value: Any) -> Any:
    return DEVICE_TYPE if value == "cuda" else value


def _by_device_type(function: Callable[..., Any]) -> Callable[..., Any]:
    def rerouted(*args: Any) -> Any:
        if not args or isinstance(args[0], bool):
            args = ("cuda", *args)
        return function(_device_type(args[0]), *args[1:])

    return rerouted
