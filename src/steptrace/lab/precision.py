"""Applies the config's memory format, compilation and number formats (group `precision`) to a model.

They do not change the function that the model computes. The equivalence check applies them to its model, too.
"""

from dataclasses import dataclass
from typing import Any, Final, cast

import torch
from torch import Tensor, nn

from steptrace.config.schema import PrecisionConfig, StepConfig
from steptrace.engine.process_facts import compiled_graphs
from steptrace.errors import TrainError

#: The number of dimensions of a batch of images. The format channels_last applies to such tensors only.
_IMAGES: Final = 4
#: The number format of autocast, by its name in the config.
_AUTOCAST_DTYPES: Final = {"bf16": torch.bfloat16, "fp16": torch.float16}


def prepared(model: nn.Module, step: StepConfig) -> nn.Module:
    """The model as the config's group `step` asks for it: changed in place, and wrapped if it is compiled.

    With `channels_last` the weights of its convolutions get that memory format, and so do the input images at the start
    of the forward pass. With `compile`, a mode of torch.compile, the model is compiled at its first call, which raises
    the errors of the compiler.
    """
    if step.channels_last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        model.register_forward_pre_hook(_images_channels_last)
    if step.compile is not None:
        if compiled_graphs():
            # Models of one class share the compiler's cache and its limit of recompilations.
            torch.compiler.reset()
        # Not `model.compile`, which silently does nothing for a model of one of torch.nn's own classes.
        return cast("nn.Module", torch.compile(model, mode=step.compile))
    return model


def _images_channels_last(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(map(_image_channels_last, inputs))


def _image_channels_last(part: Any) -> Any:
    if not isinstance(part, Tensor) or part.ndim != _IMAGES:
        return part
    return part.contiguous(memory_format=torch.channels_last)


def check_compiled(step: StepConfig) -> None:
    """Raise `TrainError` if the config asks for a compiled model, but the model ran eagerly."""
    if step.compile is not None and compiled_graphs() == 0:
        raise TrainError(
            "torch.compile made no graph of the model",
            where=f"step.compile: {step.compile}",
            expected="at least one compiled graph",
            next_step="find the reason with TORCH_LOGS=graph_breaks, or train without step.compile",
        )


@dataclass(frozen=True)
class NumberFormats:
    """The number formats of a training step.

    Attributes:
        device_type: `cpu` or `cuda`.
        autocast_dtype: the format of autocast; None: no autocast.
        tf32: whether matrix products and convolutions may use TF32.
        grad_scaler: whether the loss is scaled, so that small float16 gradients do not become zero.
    """

    device_type: str
    autocast_dtype: torch.dtype | None
    tf32: bool
    grad_scaler: bool

    @classmethod
    def from_config(cls, config: PrecisionConfig, device_type: str) -> "NumberFormats":
        """The precision that the config's group `precision` asks for."""
        dtype = None if config.autocast is None else _AUTOCAST_DTYPES[config.autocast]
        return cls(device_type, dtype, config.tf32, config.grad_scaler)

    def apply(self) -> None:
        """Set TF32 or full float32 for matrix products and convolutions, process-wide.

        Both are always set, because PyTorch's defaults differ: convolutions use TF32, matrix products do not.
        """
        # By the older switches. If the newer `fp32_precision` were set, PyTorch would raise wherever the older ones are
        # read, as torch.compile and users' code do.
        torch.set_float32_matmul_precision("high" if self.tf32 else "highest")
        torch.backends.cudnn.allow_tf32 = self.tf32

    def autocast(self) -> torch.autocast:
        """A context for the forward pass and the loss."""
        return torch.autocast(self.device_type, dtype=self.autocast_dtype, enabled=self.autocast_dtype is not None)

    def scaler(self) -> torch.amp.GradScaler:
        """A gradient scaler that does nothing unless `grad_scaler` is set."""
        return torch.amp.GradScaler(self.device_type, enabled=self.grad_scaler)
