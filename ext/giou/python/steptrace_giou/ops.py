"""The GIoU loss to call. Importing this module loads the compiled operators, or warns and takes the Python twin.

`IMPLEMENTATION` says which of the two runs; `IMPLEMENTATION.require("cuda")` makes a run that must not fall back fail.
"""

import warnings
from typing import Any, Final

import torch
from torch import Tensor

from steptrace_giou import reference
from steptrace_giou.checks import check_boxes, check_float32_boxes, math_dtype
from steptrace_giou.library import NAMESPACE, FallbackWarning, Implementation, load

IMPLEMENTATION: Final[Implementation] = load()


def giou_loss(predictions: Tensor, targets: Tensor, *, iterations: int = 1) -> Tensor:
    """1 - (sum of GIoU over the boxes that count) / max(number of boxes that count, 1), in one launch.

    A box counts if coordinate 3 of its target is above 0, so that padding is rows of zeros. Without any such box the
    loss is 1 and every gradient 0. Arithmetic is float32, for float64 predictions float64; GIoU is defined in
    `reference.giou`. Differentiable once, by the predictions. The result is the same on every call, and on a CPU for
    any number of threads.

    Args:
        predictions: (..., 4), corners x1, y1, x2, y2: float32, bfloat16, float16 or float64. Any number, also 0.
        targets: the same shape, device and unit; the predictions' dtype, float32 or uint8.
        iterations: how often the arithmetic of each box is done over, a load for measurements; the loss stays the same.

    Returns:
        A scalar: float64 for float64 predictions, else float32.

    Raises:
        RuntimeError: the shapes, dtypes or devices do not go together, or `iterations` is below 1.
    """
    if _serves(predictions):
        loss: Tensor
        if torch.compiler.is_compiling():
            loss = torch.ops.steptrace_giou.giou_loss.default(predictions, targets, iterations)[0]
        else:
            loss = _Loss.apply(predictions, targets, iterations)
        return loss
    return reference.giou_loss(predictions, targets, iterations=iterations)


def box_giou(
    predictions: Tensor, targets: Tensor, *, conditional: bool = False, iterations: int = 1
) -> tuple[Tensor, Tensor]:
    """GIoU box by box, the way the article's kernel does it: one thread a box, nothing summed.

    Args:
        predictions: (..., 4), float32.
        targets: the same, with boxes that count and padding as in `giou_loss`.
        conditional: skip the arithmetic of boxes that do not count, instead of computing and discarding it.
        iterations: as in `giou_loss`.

    Returns:
        Two float32 tensors of shape (...): GIoU, 0 where the box does not count; and 1 or 0, whether it counts.

    Raises:
        RuntimeError: as in `giou_loss`, or a dtype other than float32.
    """
    if _serves(predictions):
        values, valid = torch.ops.steptrace_giou.box_giou(predictions, targets, conditional, iterations)
        return values, valid.detach()
    return reference.box_giou(predictions, targets, conditional=conditional, iterations=iterations)


def kernel_loss(predictions: Tensor, targets: Tensor, *, conditional: bool = False, iterations: int = 1) -> Tensor:
    """The loss of `giou_loss` from the article's kernel: conversions to float32, one kernel, two reductions."""
    values, valid = box_giou(predictions.float(), targets.float(), conditional=conditional, iterations=iterations)
    return 1 - values.sum() / valid.sum().clamp(min=1)


def empty_call(like: Tensor) -> None:
    """Call an operator that does nothing on `like`'s device: an empty kernel on CUDA, the dispatcher alone on a CPU.

    Raises:
        RuntimeError: no library serves that device.
    """
    IMPLEMENTATION.require(like.device.type)
    torch.ops.steptrace_giou.empty_call(like)


def serves(tensor: Tensor) -> bool:
    """Whether the library's operators can be called on `tensor`.

    They can on the devices that it has kernels for, and on tensors that run operators themselves, in Python, whatever
    device they say they are on (PyTorch's fake tensors, virtual devices).
    """
    return IMPLEMENTATION.name == "library" and (
        tensor.device.type in IMPLEMENTATION.devices or torch._C._dispatch_keys(tensor).has(torch._C.DispatchKey.Python)
    )


def _serves(tensor: Tensor) -> bool:
    if serves(tensor):
        return True
    if IMPLEMENTATION.name == "library":
        warnings.warn(
            f"steptrace_giou runs its slow Python twin: {IMPLEMENTATION.path} has no kernels for {tensor.device.type}",
            FallbackWarning,
            stacklevel=3,
        )
    return False


class _Loss(torch.autograd.Function):
    """The fused operator, with the same formula as is registered for it below, in about half the time on the CPU.

    A registered formula is found by way of the dispatcher, which takes the arguments apart and wraps them in Python.
    The compiler needs it, and so do direct calls of the operator.
    """

    @staticmethod
    def forward(ctx: Any, predictions: Tensor, targets: Tensor, iterations: int) -> Tensor:
        with torch._C._AutoDispatchBelowAutograd():
            loss: Tensor
            loss, valid = torch.ops.steptrace_giou.giou_loss.default(predictions, targets, iterations)
        ctx.save_for_backward(predictions, targets, valid)
        ctx.iterations = iterations
        return loss

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        if torch.is_grad_enabled() or torch.compiler.is_compiling():  # the operator itself refuses a second derivative
            return _loss_backward(ctx, grad, None)
        with torch._C._AutoDispatchBelowAutograd():
            return _loss_backward(ctx, grad, None)


# ---- what torch must know of the operators: shapes for tracing, formulas for autograd ----


def _fake_loss(predictions: Tensor, targets: Tensor, iterations: int = 1) -> tuple[Tensor, Tensor]:
    check_boxes("giou_loss", predictions, targets, iterations)
    loss = predictions.new_empty((), dtype=math_dtype(predictions.dtype))
    return loss, predictions.new_empty((), dtype=torch.int64)


def _fake_loss_backward(
    grad: Tensor, predictions: Tensor, targets: Tensor, valid: Tensor, iterations: int = 1
) -> Tensor:
    del grad, valid
    check_boxes("giou_loss_backward", predictions, targets, iterations)
    return predictions.new_empty(predictions.shape)


def _fake_box(
    predictions: Tensor,
    targets: Tensor,
    conditional: bool = False,  # noqa: FBT001, FBT002 the schema's order
    iterations: int = 1,
) -> tuple[Tensor, Tensor]:
    del conditional
    check_float32_boxes("box_giou", predictions, targets, iterations)
    return predictions.new_empty(predictions.shape[:-1]), predictions.new_empty(predictions.shape[:-1])


def _fake_box_backward(
    grad: Tensor,
    predictions: Tensor,
    targets: Tensor,
    conditional: bool = False,  # noqa: FBT001, FBT002
    iterations: int = 1,
) -> Tensor:
    del grad, conditional
    check_float32_boxes("box_giou_backward", predictions, targets, iterations)
    return predictions.new_empty(predictions.shape)


def _save_loss(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    predictions, targets, ctx.iterations = inputs
    ctx.save_for_backward(predictions, targets, output[1])


def _loss_backward(ctx: Any, grad: Tensor, grad_valid: Tensor | None) -> tuple[Tensor, None, None]:
    del grad_valid  # a count has no gradient
    predictions, targets, valid = ctx.saved_tensors
    gradient = torch.ops.steptrace_giou.giou_loss_backward.default(grad, predictions, targets, valid, ctx.iterations)
    return gradient, None, None


def _save_box(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    del output
    predictions, targets, ctx.conditional, ctx.iterations = inputs
    ctx.save_for_backward(predictions, targets)


def _box_backward(ctx: Any, grad: Tensor, grad_valid: Tensor | None) -> tuple[Tensor, None, None, None]:
    del grad_valid  # 0 or 1 has no gradient
    predictions, targets = ctx.saved_tensors
    op = torch.ops.steptrace_giou.box_giou_backward
    return op(grad, predictions, targets, ctx.conditional, ctx.iterations), None, None, None


def _no_second_derivative(ctx: Any, *grads: Tensor) -> None:
    del ctx, grads
    raise RuntimeError(
        "giou: got a request for a second derivative, expected at most one; steptrace_giou.reference has it"
    )


def _register() -> None:
    library = torch.library
    library.register_fake(f"{NAMESPACE}::giou_loss", _fake_loss)
    library.register_fake(f"{NAMESPACE}::giou_loss_backward", _fake_loss_backward)
    library.register_fake(f"{NAMESPACE}::box_giou", _fake_box)
    library.register_fake(f"{NAMESPACE}::box_giou_backward", _fake_box_backward)
    library.register_autograd(f"{NAMESPACE}::giou_loss", _loss_backward, setup_context=_save_loss)
    library.register_autograd(f"{NAMESPACE}::box_giou", _box_backward, setup_context=_save_box)
    for op in ("giou_loss_backward", "box_giou_backward"):
        library.register_autograd(f"{NAMESPACE}::{op}", _no_second_derivative)


if IMPLEMENTATION.name == "library":
    _register()
