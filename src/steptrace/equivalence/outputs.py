"""The outputs of a variant on one batch: its predictions, its loss, and two gradients, as the training loop has them.

The relative error of the loss is |loss - reference| / |reference|. That of the other outputs, each taken as one vector,
is ||value - reference|| / ||reference|| in the Euclidean norm. If a reference is exactly 0, the absolute error is used.
"""

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn

from steptrace.errors import TrainError
from steptrace.lab.loop import Batch, to_device
from steptrace.lab.precision import NumberFormats
from steptrace.lab.setup import seed_everything
from steptrace.torch_names import private

#: The base class of all dropout layers.
_DropoutNd: Final[Any] = private("torch.nn.modules.dropout._DropoutNd") or nn.Dropout
#: Takes nested lists, tuples and mappings apart; None if PyTorch lacks it. Then an output has to be one tensor.
_pytree: Final[Any] = private("torch.utils._pytree")
#: A gradient scale is halved at most this often before its gradients count as not finite: from 2^16 down to 1.
_SCALE_BACKOFFS: Final = 16


def relative_error(got: Tensor, reference: Tensor) -> float:
    """||got - reference|| / ||reference||, or ||got|| where the reference is 0; NaN if either is not finite."""
    size = float(torch.linalg.vector_norm(reference))
    error = float(torch.linalg.vector_norm(got - reference))
    return error / size if size > 0 else error


@dataclass(frozen=True)
class Outputs:
    """The outputs of a variant, on the CPU.

    Attributes:
        loss: the loss.
        loss_dtype: its number format.
        predictions: the tensors that the model returns.
        gradient: the gradient of the loss by each of the predictions.
        parameters: the gradient by the parameters that follows from `gradient` in float32, as one vector.
    """

    loss: float
    loss_dtype: torch.dtype
    predictions: list[Tensor]
    gradient: list[Tensor]
    parameters: Tensor


def variant_outputs(model: nn.Module, loss: Any, precision: NumberFormats, batch: Batch, seed: int) -> Outputs:
    """Loss and gradient as the training loop computes them, on the model's device and in its precision."""
    device = next(model.parameters()).device
    inputs, targets = to_device(batch, device)
    precision.apply()
    buffers = [buffer.clone() for buffer in model.buffers()]
    with precision.autocast(), same_dropout(model, seed):
        predictions, form = output_tensors(model(inputs))
    # As GradScaler does: start with a large scale, and halve it while the scaled gradient overflows.
    scale = 2.0**_SCALE_BACKOFFS if precision.grad_scaler else 1.0
    while True:
        value, gradient = loss_and_gradient(loss, predictions, form, targets, precision=precision, scale=scale)
        if scale == 1.0 or all(bool(part.isfinite().all()) for part in gradient):
            break
        scale /= 2
    NumberFormats(device.type, None, tf32=False, grad_scaler=False).apply()
    for buffer, before in zip(model.buffers(), buffers, strict=True):
        buffer.copy_(before)  # the reference runs only once
    with same_dropout(model, seed):
        exact, _ = output_tensors(model(inputs))
    parameters = gradient_by_parameters(model, exact, gradient)
    return Outputs(value.item(), value.dtype, on_cpu(predictions), on_cpu(gradient), parameters.float().cpu())


def output_tensors(output: Any) -> tuple[list[Tensor], Any]:
    """The floating-point tensors of a model's output, and its structure, from which `loss_and_gradient` rebuilds it."""
    leaves, tree = ([output], None) if _pytree is None else _pytree.tree_flatten(output)
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.is_floating_point()]
    if not tensors:
        raise TrainError(
            f"the model returns {type(output).__name__}, without a tensor to compare with the reference's",
            where="model",
            expected="a floating-point tensor, or lists, tuples and mappings of some",
        )
    return tensors, (leaves, tree)


def loss_and_gradient(
    loss: Any, predictions: list[Tensor], form: Any, targets: Any, *, precision: NumberFormats, scale: float = 1.0
) -> tuple[Tensor, list[Tensor]]:
    """The loss of some predictions, and its gradient by each of them."""
    inputs = [part.detach().requires_grad_() for part in predictions]
    rest = iter(inputs)
    leaves, tree = form
    put = [next(rest) if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf for leaf in leaves]
    with precision.autocast():
        value = loss(put[0] if _pytree is None else _pytree.tree_unflatten(put, tree), targets)
    (value * scale).backward()
    gradient = [torch.zeros_like(part) if part.grad is None else part.grad for part in inputs]
    # Divided in float32: in 16 bits the small values, which the scale keeps from underflow, would underflow now.
    return value.detach(), [part.float() / scale for part in gradient] if scale != 1.0 else gradient


def gradient_by_parameters(model: nn.Module, predictions: list[Tensor], gradient: list[Tensor]) -> Tensor:
    """The gradient by the parameters that follows from a gradient by the predictions, as one vector."""
    model.zero_grad(set_to_none=True)
    pairs = [(part, by.to(part)) for part, by in zip(predictions, gradient, strict=True) if part.requires_grad]
    if pairs:
        torch.autograd.backward([part for part, _ in pairs], [by for _, by in pairs])
    return vector(torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters())


def on_cpu(parts: list[Tensor]) -> list[Tensor]:
    """The tensors, detached and on the CPU."""
    return [part.detach().cpu() for part in parts]


def vector(parts: Iterable[Tensor]) -> Tensor:
    """Tensors as one float64 vector on the CPU."""
    return torch.cat([part.detach().flatten().to("cpu", torch.float64) for part in parts])


@contextmanager
def same_dropout(model: nn.Module, seed: int) -> Generator[None]:
    """Seed all generators, and let dropout draw on the CPU, since draws differ between devices and number formats.

    This covers PyTorch's dropout modules only. Calls of the function `dropout` still draw on their own device.
    """
    seed_everything(seed)
    draw = torch.Generator().manual_seed(seed)
    modules = [
        module
        for module in model.modules()
        if isinstance(module, nn.Dropout | nn.Dropout1d | nn.Dropout2d | nn.Dropout3d)
    ]
    for module in modules:
        module.forward = partial(_dropped, module, draw)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for module in modules:
            del module.forward


def _dropped(module: _DropoutNd, draw: torch.Generator, values: Tensor) -> Tensor:
    if not module.training or module.p == 0:
        return values
    whole = values.ndim if isinstance(module, nn.Dropout) else 2  # the others drop channels
    shape = [length if axis < whole else 1 for axis, length in enumerate(values.shape)]
    kept = torch.rand(shape, generator=draw) >= module.p
    dropped: Tensor = values * kept.to(values.device) / (1 - module.p)
    return dropped
