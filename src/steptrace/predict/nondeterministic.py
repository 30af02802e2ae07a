"""What CUDA computes in another order each time: it fails, or warns, under `torch.use_deterministic_algorithms(True)`.

The CPU computes most of these in one order, so its own operators do not complain.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch

from steptrace.predict.operators import Overload
from steptrace.torch_names import private

#: Raises or warns, as the program has set it, with the words of PyTorch's C++.
_ALERT: Any = private("torch._prims_common.alert_not_deterministic")
_Arguments = Mapping[str, Any]
#: The number that stands for the mode "max" of an EmbeddingBag, and that for a loss without a reduction.
_MAX_OF_BAG: Final = 2
_NO_REDUCTION: Final = 0


def _always(_call: _Arguments) -> bool:
    return True


def _adds_fractions(call: _Arguments) -> bool:
    kind = call.get("dtype") or call["self"].dtype
    return bool((kind.is_floating_point or kind.is_complex) and call["self"].dim() and call["self"].numel())


def _of_largest(call: _Arguments) -> bool:
    return bool(call["mode"] == _MAX_OF_BAG)


#: By operator, the name in CUDA's message and whether a call is one of those that CUDA complains about. They are the
#: calls of `alertNotDeterministic` in `aten/src/ATen/native/cuda`, as PyTorch 2.13's documentation, tests and Python
#: functions for fake tensors name them, and those in `torchvision/csrc`. Known from other releases alone:
#: `adaptive_max_pool3d_backward`, `_upsample_bicubic2d_aa_backward`, and torchvision's rows but `roi_align`'s.
#: What PyTorch complains about on each device is left out: `put_` without accumulation and `max_unpool2d`, `3d`.
NONDETERMINISTIC: Final[Mapping[str, tuple[str, Callable[[_Arguments], bool]]]] = {
    "aten::_adaptive_avg_pool2d_backward": ("adaptive_avg_pool2d_backward_cuda", _always),
    "aten::_adaptive_avg_pool3d_backward": ("adaptive_avg_pool3d_backward_cuda", _always),
    "aten::adaptive_max_pool2d_backward": ("adaptive_max_pool2d_backward_cuda", _always),
    "aten::adaptive_max_pool3d_backward": ("adaptive_max_pool3d_backward_cuda", _always),
    "aten::avg_pool3d_backward": ("avg_pool3d_backward_cuda", _always),
    "aten::fractional_max_pool2d_backward": ("fractional_max_pool2d_backward_cuda", _always),
    "aten::fractional_max_pool3d_backward": ("fractional_max_pool3d_backward_cuda", _always),
    "aten::upsample_linear1d_backward": ("upsample_linear1d_backward_out_cuda", _always),
    "aten::upsample_bilinear2d_backward": ("upsample_bilinear2d_backward_out_cuda", _always),
    "aten::upsample_bicubic2d_backward": ("upsample_bicubic2d_backward_out_cuda", _always),
    "aten::upsample_trilinear3d_backward": ("upsample_trilinear3d_backward_out_cuda", _always),
    "aten::_upsample_bilinear2d_aa_backward": ("upsample_bilinear2d_aa_backward_out_cuda", _always),
    "aten::_upsample_bicubic2d_aa_backward": ("upsample_bicubic2d_aa_backward_out_cuda", _always),
    "aten::reflection_pad1d_backward": ("reflection_pad1d_backward_out_cuda", _always),
    "aten::reflection_pad2d_backward": ("reflection_pad2d_backward_cuda", _always),
    "aten::reflection_pad3d_backward": ("reflection_pad3d_backward_out_cuda", _always),
    "aten::replication_pad1d_backward": ("replication_pad1d_backward_cuda", _always),
    "aten::replication_pad2d_backward": ("replication_pad2d_backward_cuda", _always),
    "aten::replication_pad3d_backward": ("replication_pad3d_backward_cuda", _always),
    "aten::grid_sampler_2d_backward": ("grid_sampler_2d_backward_cuda", _always),
    "aten::grid_sampler_3d_backward": ("grid_sampler_3d_backward_cuda", _always),
    "aten::_ctc_loss_backward": ("ctc_loss_backward_gpu", _always),
    "aten::nll_loss2d_forward": (
        "nll_loss2d_forward_out_cuda_template", lambda call: call["reduction"] != _NO_REDUCTION
    ),
    "aten::_embedding_bag_backward": ("embedding_bag_backward_cuda_max", _of_largest),
    "aten::_embedding_bag_dense_backward": ("embedding_bag_backward_cuda_max", _of_largest),
    "aten::cumsum": ("cumsum_cuda_kernel", _adds_fractions),
    "aten::cumsum_": ("cumsum_cuda_kernel", _adds_fractions),
    "aten::put_": ("put_", lambda call: bool(call["accumulate"])),
    "aten::index_reduce": ("index_reduce_cuda", _always),
    "aten::index_reduce_": ("index_reduce_cuda", _always),
    "aten::scatter_reduce": ("scatter_reduce_cuda_prod_", lambda call: call["reduce"] == "prod"),
    "aten::scatter_reduce_": ("scatter_reduce_cuda_prod_", lambda call: call["reduce"] == "prod"),
    "aten::scatter": ("scatter_reduce_cuda_kernel", lambda call: "reduce" in call and "src" in call),
    "aten::scatter_": ("scatter_reduce_cuda_kernel", lambda call: "reduce" in call and "src" in call),
    "aten::histc": ("_histc_cuda with floating point input", lambda call: call["self"].is_floating_point()),
    "aten::bincount": ("_bincount_cuda", lambda call: call.get("weights") is not None),
    "aten::median": ("median CUDA with indices output", lambda call: "dim" in call),
    "aten::nanmedian": ("median CUDA with indices output", lambda call: "dim" in call),
    "torchvision::_roi_align_backward": ("roi_align_backward_kernel", _always),
    "torchvision::_roi_pool_backward": ("roi_pool_backward_kernel", _always),
    "torchvision::_ps_roi_align_backward": ("ps_roi_align_backward_kernel", _always),
    "torchvision::_ps_roi_pool_backward": ("ps_roi_pool_backward_kernel", _always),
}  # fmt: skip


def alert_if_not_deterministic(overload: Overload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Complain as CUDA does about an operator that has no deterministic form there, if the program asks for that.

    Args:
        overload: the operator.
        args: its arguments by position, with tensors of the virtual device among them.
        kwargs: its arguments by name.

    Raises:
        RuntimeError: the program wants deterministic algorithms, and CUDA has none for this call. If the program asked
            for warnings only, there is a warning.
    """
    if not torch.are_deterministic_algorithms_enabled():
        return
    row = NONDETERMINISTIC.get(overload.name)
    if row is None or _ALERT is None:
        return
    name, concerns = row
    if concerns(overload.bind(args, kwargs)):
        _ALERT(name)
