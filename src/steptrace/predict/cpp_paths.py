"""Where PyTorch's C++ goes another way for a CUDA tensor than for a subclass of Tensor, which the virtual ones are."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from steptrace.predict.recorder import Syncs
from steptrace.predict.tensor import is_virtual

_VALUES = "torch/csrc/autograd/FunctionsManual.cpp"
#: Autograd nodes that read from CUDA tensors whether there are zeros, by their formula's name and source.
_READS_ZEROS = {
    "ProdBackward0": f"{_VALUES}: prod_backward takes nonzero() of the zeros",
    "ProdBackward1": f"{_VALUES}: prod_backward reads how many zeros there are",
    "CumprodBackward0": f"{_VALUES}: cumprod_backward reads whether there are zeros",
}


def judge_node(node: Any, recorder: Syncs) -> None:
    """Count what an autograd node does beside its operators, at the first of them."""
    if node is recorder.node:
        return
    recorder.node = node
    source = _READS_ZEROS.get(node.name()) if node is not None else None
    if source is not None and _has_elements(node):
        recorder.sync("d2h_copy", f"autograd::{node.name()}", source)


def _has_elements(node: Any) -> bool:
    """A tensor without dimensions, and one of one element for cumprod, has a gradient without looking."""
    saved = node._saved_self
    return bool(saved.numel() > 1 if node.name() == "CumprodBackward0" else saved.dim() > 0)


def _from_data(position: int, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of numbers that reads the tensors among them. C++ does, past all dispatch."""

    def read(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return type(value)(map(read, value))
        return value.detach().cpu() if is_virtual(value) else value

    def from_data(*args: Any, **kwargs: Any) -> Any:
        if len(args) > position and isinstance(args[position], list | tuple):
            args = (*args[:position], read(args[position]), *args[position + 1 :])
        elif isinstance(kwargs.get("data"), list | tuple):
            kwargs = {**kwargs, "data": read(kwargs["data"])}
        return function(*args, **kwargs)

    return from_data


def _ctc_loss(
    log_probs: Tensor, targets: Tensor, input_lengths: Any, target_lengths: Any, *options: Any, **named: Any
) -> Tensor:
    """Copies the targets to the host to ask whether cuDNN can take them, once more for lengths given as tensors."""
    lengths: tuple[Any, ...] = (input_lengths, target_lengths)
    if is_virtual(log_probs):
        given = [length for length in lengths if isinstance(length, Tensor)]
        for _ in range(2 if given else 1):
            targets.cpu()
        may = targets.dtype == torch.int32 and targets.dim() == 1 and not (given and given[0].dtype != torch.int32)
        if may and (given or not is_virtual(targets)) and Syncs.active is not None:
            Syncs.active.cannot_judge("aten::_cudnn_ctc_loss", "cuDNN may take this one, and copies otherwise")
        if len(given) == len(lengths):
            lengths = tuple(length.cpu().reshape(-1).tolist() for length in given)
    result: Tensor = torch.ctc_loss(log_probs, targets, *lengths, *options, **named)
    return result


#: What is called in place of a function.
REPLACED: dict[Any, Callable[..., Any]] = {
    torch.ctc_loss: _ctc_loss,
    torch.tensor: _from_data(0, torch.tensor),
    torch.as_tensor: _from_data(0, torch.as_tensor),
    torch.asarray: _from_data(0, torch.asarray),
    Tensor.new_tensor: _from_data(1, Tensor.new_tensor),
}
