"""What the operators demand of their arguments: csrc/giou_checks.h in Python, for the twin and for tracing."""

import torch
from torch import Tensor

PREDICTION_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def check_layout(op: str, predictions: Tensor, targets: Tensor, iterations: int) -> None:
    """Raise RuntimeError unless both are (..., 4) of one shape on one device and `iterations` is at least 1."""
    if predictions.dim() < 1 or predictions.shape[-1] != 4:
        raise RuntimeError(
            f"{op}: got predictions of shape {tuple(predictions.shape)}, "
            "expected (..., 4): x1, y1, x2, y2 of one box a row"
        )
    if predictions.shape != targets.shape:
        raise RuntimeError(
            f"{op}: got targets of shape {tuple(targets.shape)}, "
            f"expected the predictions' shape {tuple(predictions.shape)}"
        )
    if predictions.device != targets.device:
        raise RuntimeError(
            f"{op}: got predictions on {predictions.device} and targets on {targets.device}, expected one device"
        )
    if iterations < 1:
        raise RuntimeError(f"{op}: got iterations={iterations}, expected at least 1")


def check_boxes(op: str, predictions: Tensor, targets: Tensor, iterations: int) -> None:
    """As check_layout, and the two dtypes must go together."""
    check_layout(op, predictions, targets, iterations)
    if predictions.dtype not in PREDICTION_DTYPES:
        raise RuntimeError(
            f"{op}: got predictions of dtype {_name(predictions.dtype)}, expected float32, bfloat16, float16 or float64"
        )
    if targets.dtype not in (predictions.dtype, torch.float32, torch.uint8):
        raise RuntimeError(
            f"{op}: got targets of dtype {_name(targets.dtype)} with predictions of dtype {_name(predictions.dtype)}, "
            "expected the predictions' dtype, float32 or uint8"
        )


def check_float32_boxes(op: str, predictions: Tensor, targets: Tensor, iterations: int) -> None:
    """As check_layout, and both must be float32."""
    check_layout(op, predictions, targets, iterations)
    if predictions.dtype != torch.float32 or targets.dtype != torch.float32:
        raise RuntimeError(
            f"{op}: got predictions of dtype {_name(predictions.dtype)} and targets of dtype {_name(targets.dtype)}, "
            "expected float32 for both"
        )


def math_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type of the arithmetic and of the loss for predictions of `dtype`: float64 for float64, else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32
