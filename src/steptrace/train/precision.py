"""Applies the memory format, compilation and number formats (group `precision`) of the config to a model.

They do not change the function that the model computes; the equivalence check applies them to its model, too.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

import torch
from torch import Tensor, nn

from steptrace.engine.device import compilations
from steptrace.errors import TrainError

#: Dimensions of a batch of images, which channels_last applies to.
_IMAGES: Final = 4
#: Names of the config -> dtype that autocast runs eligible operations in.
_AUTOCAST_DTYPES: Final = {"bf16": torch.bfloat16, "fp16": torch.float16}


def prepared(model: nn.Module, step: Mapping[str, Any]) -> nn.Module:
    """`model` by the config's `step` group: changed in place, and wrapped if it is compiled.

    With `channels_last` its convolutions' weights get that memory format, and so do its input images, at the start of
    the forward pass. With `compile`, the mode of torch.compile, the model is compiled at its first call, which raises
    the compiler's errors.
    """
    if step["channels_last"]:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        model.register_forward_pre_hook(_images_channels_last)
    if step["compile"] is not None:
        if compilations():
            # Models of one class share the compiler's cache, and together count towards its limit of recompilations.
            torch.compiler.reset()
        # Not `model.compile`, which silently does nothing for a model of one of torch.nn's own classes.
        return cast("nn.Module", torch.compile(model, mode=step["compile"]))
    return model


def _images_channels_last(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(map(_image_channels_last, inputs))


def _image_channels_last(part: Any) -> Any:
    if not isinstance(part, Tensor) or part.ndim != _IMAGES:
        return part
    return part.contiguous(memory_format=torch.channels_last)


def check_compiled(step: Mapping[str, Any]) -> None:
    """Raise `TrainError` if the config requests a compiled model, but no graph was made: it ran eagerly."""
    if step["compile"] is not None and compilations() == 0:
        raise TrainError(
            "torch.compile made no graph of the model",
            where=f"step.compile: {step['compile']}",
            expected="at least one compiled graph",
            next_step="find the reason with TORCH_LOGS=graph_breaks, or train without step.compile",
        )


@dataclass(frozen=True)
class Precision:
    """The precision of a training step on one type of device (`cpu` or `cuda`).

    `autocast_dtype` None means no autocast; `grad_scaler` scales the loss so that small float16 gradients survive.
    """

    device_type: str
    autocast_dtype: torch.dtype | None
    tf32: bool
    grad_scaler: bool

    @classmethod
    def from_config(cls, config: Mapping[str, Any], device_type: str) -> "Precision":
        """Read the config's `precision` group."""
        dtype = None if config["autocast"] is None else _AUTOCAST_DTYPES[config["autocast"]]
        return cls(device_type, dtype, config["tf32"], config["grad_scaler"])

    def apply(self) -> None:
        """Set TF32 or full float32 for matrix products and convolutions, process-wide.

        Both are always set, because PyTorch's defaults differ: convolutions use TF32, matrix products do not.
        """
        # The older switches: once the newer `fp32_precision` is set, PyTorch raises wherever the older ones are read,
        # as torch.compile and users' code do.
        torch.set_float32_matmul_precision("high" if self.tf32 else "highest")
        torch.backends.cudnn.allow_tf32 = self.tf32

    def autocast(self) -> torch.autocast:
        """The context in which forward and loss run."""
        return torch.autocast(self.device_type, dtype=self.autocast_dtype, enabled=self.autocast_dtype is not None)

    def scaler(self) -> torch.amp.GradScaler:
        """A gradient scaler that does nothing unless `grad_scaler` is set."""
        return torch.amp.GradScaler(self.device_type, enabled=self.grad_scaler)
