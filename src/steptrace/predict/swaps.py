"""Tensors that get new content and stay the same object: by `tensor.data = other`, or when their module moves.

On CUDA such a tensor keeps its class, its gradient, and what the program has noted on it. PyTorch's C++ refuses to give
a tensor of the host the content of one of the virtual device, so the two change places here.
"""

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor, nn

from steptrace.predict.places import is_inside
from steptrace.predict.pytorch import functions_off
from steptrace.predict.tensor import SET_DATA, attributes_of_program, is_virtual, is_wrapper, known_class, take_ours
from steptrace.torch_names import private

#: Exchanges the C++ parts of two tensors.
_EXCHANGE: Final[Any] = private("torch._C._swap_tensor_impl")
#: Methods of modules that give their own tensors new content. On CUDA they use `tensor.data = other`.
_OF_MODULES: Final = ("Module._apply", "Module._load_from_state_dict")
#: The attribute of a tensor that holds the hooks of its gradient. C++ has the hooks, too, in the part that is swapped.
_HOOKS: Final = ("_backward_hooks", "_post_accumulate_grad_hooks")
#: Marks a tensor of the virtual device as a parameter: its class is not `nn.Parameter`.
_IS_PARAMETER: Final = "_is_param"


def set_data(tensor: Any, data: Any) -> None:
    """`tensor.data = data`, where either lies on the virtual device."""
    if is_virtual(tensor) is is_virtual(data) and tensor.is_inference() is data.is_inference():
        SET_DATA(tensor, data)  # which may refuse
        tensor._inner = data._inner.detach()
        tensor.gpu = data.gpu
        return
    # Outside of inference mode its tensors cannot require gradients.
    with functions_off(), torch.inference_mode(data.is_inference()):
        _take(tensor, data.detach())


def swapping(swap: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    """`torch.utils.swap_tensors`: a tensor of a module keeps its class, as one that is not swapped on CUDA."""

    def swap_tensors(first: Any, second: Any) -> None:
        of_class = not (is_wrapper(type(first)) or is_wrapper(type(second)))
        if _EXCHANGE is not None and of_class and any(map(is_inside, _OF_MODULES)):
            with functions_off():
                _take(first, second)
            return
        kept = [take_ours(tensor) for tensor in (first, second)]
        try:
            swap(first, second)
            kept.reverse()
        finally:
            for tensor, attributes in zip((first, second), kept, strict=True):
                for name, value in attributes.items():
                    setattr(tensor, name, value)

    return swap_tensors


def _is_held_by_cpp(tensor: Any) -> bool:
    """Whether a graph, or a scripted module, holds a tensor: it would keep the old content."""
    count = tensor._use_count()
    if count == 1 or not (tensor.is_leaf and tensor.requires_grad):
        return bool(count > 1)
    _accumulator = torch.autograd.graph.get_gradient_edge(
        tensor
    )  # made here if it does not exist yet; it holds the tensor, too
    return bool(tensor._use_count() > 2)


def _take(tensor: Any, content: Any) -> None:
    """Give a tensor the content of another one, which is not used afterwards.

    Raises:
        RuntimeError: it cannot change places with the other.
    """
    if _is_held_by_cpp(tensor):
        raise RuntimeError("a graph or a scripted module holds the tensor, so that its content cannot be exchanged")
    kind = known_class(tensor)
    attributes = attributes_of_program(tensor)
    gradient = tensor.grad
    hooks = {name: hook for name in _HOOKS if (hook := getattr(tensor, name, None)) is not None}
    needs_gradient = tensor.requires_grad
    content = content.detach().as_subclass(Tensor if kind is nn.Parameter else kind)
    content = nn.Parameter(content, needs_gradient) if kind is nn.Parameter else content.requires_grad_(needs_gradient)
    if gradient is not None and gradient.shape == content.shape:
        content.grad = gradient.to(content.device, content.dtype)
    _EXCHANGE(tensor, content)
    attributes.pop(_IS_PARAMETER, None)
    take_ours(tensor)
    tensor.__class__ = type(content)
    tensor.__dict__ = {**vars(content), **attributes}
    if is_virtual(content):
        tensor._inner = content._inner
        tensor.gpu = content.gpu
    for name, hook in hooks.items():
        setattr(tensor, name, hook)  # registers the hooks in C++ again
