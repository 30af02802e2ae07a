"""Replacements of functions whose C++ goes another way for a CUDA tensor than for a subclass of Tensor.

The values stay the same. The replacements make the operators, copies and syncs of a CUDA tensor.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from steptrace.predict import encoder_layers, products, recurrent, spectral
from steptrace.predict.attention import attention
from steptrace.predict.memory import PINNED
from steptrace.predict.pytorch import aten
from steptrace.predict.syncs import Syncs
from steptrace.predict.tensor import is_virtual
from steptrace.torch_names import private

_ONE_HOT: Any = private("torch._C._nn.one_hot")
_EIGVALS: Any = aten("_linalg_eigvals")
_CROSS_ENTROPY: Any = private("torch._C._nn.cross_entropy_loss")
_ATTENTION: Any = private("torch._C._nn.scaled_dot_product_attention")
_CHECK_SPARSE: Any = private("torch._validate_sparse_coo_tensor_args")


def _from_data(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of numbers in lists that reads the tensors among them, and may pin its result. C++ does both, past all
    dispatch.
    """

    def read(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [item.detach().cpu() if is_virtual(item) else read(item) for item in value]
        return value

    def called(*args: Any, pin_memory: bool = False, **kwargs: Any) -> Any:
        result = function(*map(read, args), **{name: read(value) for name, value in kwargs.items()})
        return PINNED.add(result) if pin_memory and not is_virtual(result) else result

    return called


def _ctc_loss(
    log_probs: Tensor, targets: Tensor, input_lengths: Any, target_lengths: Any, *options: Any, **named: Any
) -> Tensor:
    """Copies the targets to the host to ask whether cuDNN can take them, once more for lengths given as tensors."""
    lengths: tuple[Any, ...] = (input_lengths, target_lengths)
    if is_virtual(log_probs):
        tensor_lengths = [length for length in lengths if isinstance(length, Tensor)]
        for _ in range(2 if tensor_lengths else 1):
            targets.cpu()
        may = (
            targets.dtype == torch.int32
            and targets.dim() == 1
            and not (tensor_lengths and tensor_lengths[0].dtype != torch.int32)
        )
        if may and (tensor_lengths or not is_virtual(targets)) and Syncs.active is not None:
            Syncs.active.cannot_judge("aten::_cudnn_ctc_loss", "cuDNN may take this one, and copies otherwise")
        if len(tensor_lengths) == len(lengths):
            lengths = tuple(length.cpu().reshape(-1).tolist() for length in tensor_lengths)
    result: Tensor = torch.ctc_loss(log_probs, targets, *lengths, *options, **named)
    return result


def _one_hot(input: Tensor, num_classes: int = -1) -> Tensor:
    """Ones scattered into zeros, and no check of values that the host would read; C++ compares a subclass instead."""
    if not is_virtual(input):
        result: Tensor = _ONE_HOT(input, num_classes)
        return result
    if input.dtype is not torch.int64:
        raise RuntimeError("one_hot is only applicable to index tensor of type LongTensor.")
    classes = int(input.max().item()) + 1 if num_classes == -1 else num_classes
    return input.new_zeros((*input.shape, classes)).scatter_(-1, input.unsqueeze(-1), 1)


def _eigvals(A: Tensor, *, out: Tensor | None = None) -> Tensor:  # noqa: N803 - PyTorch's name
    """Without the eigenvectors, unless a gradient needs them; for a subclass C++ computes them always."""
    if out is not None or _EIGVALS is None or not is_virtual(A) or (A.requires_grad and torch.is_grad_enabled()):
        result: Tensor = torch.linalg.eigvals(A, out=out)
        return result
    without: Tensor = _EIGVALS(A)
    return without


def _cross_entropy(
    scores: Tensor,
    labels: Tensor,
    weight: Tensor | None = None,
    reduction: int = 1,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Tensor:
    """Smoothed labels with weights, as in `aten/src/ATen/native/LossNLL.cpp`: CUDA selects the weights of the labels
    that are not ignored, and the host waits for their number; for a subclass C++ masks them instead.
    """
    is_selected = weight is not None and label_smoothing > 0 and reduction == 1 and not labels.is_floating_point()
    if weight is None or not is_selected or not is_virtual(scores):
        result: Tensor = _CROSS_ENTROPY(scores, labels, weight, reduction, ignore_index, label_smoothing)
        return result
    classes = 0 if scores.dim() == 1 else 1
    logs = scores.log_softmax(classes)
    loss = nn.functional.nll_loss(logs, labels, weight, ignore_index=ignore_index)
    shape = [-1 if axis == classes else 1 for axis in range(logs.dim())]
    smooth = -(logs * weight.view(shape)).sum(classes)
    ignored = labels == ignore_index
    smooth.masked_fill_(ignored, 0.0)
    smooth = smooth.sum() / weight.gather(0, labels.masked_select(~ignored).flatten()).sum()
    return (1 - label_smoothing) * loss + smooth * (label_smoothing / logs.size(classes))


def _check_sparse(*parts: Any, **options: Any) -> None:
    """The check of a sparse tensor's parts when it is loaded; C++ calls a kernel of the device past all dispatch."""
    _CHECK_SPARSE(*(part._inner if is_virtual(part) else part for part in parts), **options)


#: What is called in place of each function.
REPLACED: dict[Any, Callable[..., Any]] = {
    torch.ctc_loss: _ctc_loss,
    torch.linalg.eigvals: _eigvals,
    torch.tensor: _from_data(torch.tensor),
    torch.as_tensor: _from_data(torch.as_tensor),
    torch.asarray: _from_data(torch.asarray),
    Tensor.new_tensor: _from_data(Tensor.new_tensor),
    **encoder_layers.REPLACED,
    **products.REPLACED,
    **recurrent.REPLACED,
    **spectral.REPLACED,
    **{
        function: called
        for function, called in (
            (_ATTENTION, attention),
            (_ONE_HOT, _one_hot),
            (_CROSS_ENTROPY, _cross_entropy),
            (_CHECK_SPARSE, _check_sparse),
        )
        if function is not None
    },
}
