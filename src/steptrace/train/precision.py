"""How a step computes: the autocast dtype, TF32 and gradient scaling that a `precision` group of the config names."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from steptrace.errors import ConfigError

#: Names of the config -> dtype that autocast runs eligible operations in.
AUTOCAST_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


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
        """Read the config's `precision` group; `ConfigError` for an unknown autocast dtype."""
        name = config["autocast"]
        if name is not None and name not in AUTOCAST_DTYPES:
            raise ConfigError(
                f"unknown autocast dtype {name!r}", where="precision.autocast", expected="null | bf16 | fp16"
            )
        dtype = None if name is None else AUTOCAST_DTYPES[name]
        return cls(device_type, dtype, bool(config.get("tf32")), bool(config["grad_scaler"]))

    def apply(self) -> None:
        """Set what is global to the process: float32 matrix products and convolutions in TF32, or in full float32.

        Both are set either way, because PyTorch's default differs: convolutions use TF32, matrix products do not.
        """
        # The older switches on purpose: once the newer `fp32_precision` is set, PyTorch raises wherever the older
        # ones are read, and torch.compile and users' code read them.
        torch.set_float32_matmul_precision("high" if self.tf32 else "highest")
        torch.backends.cudnn.allow_tf32 = self.tf32

    def autocast(self) -> torch.autocast:
        """The context in which forward and loss run."""
        return torch.autocast(self.device_type, dtype=self.autocast_dtype, enabled=self.autocast_dtype is not None)

    def scaler(self) -> torch.amp.GradScaler:
        """A gradient scaler that does nothing unless `grad_scaler` is set."""
        return torch.amp.GradScaler(self.device_type, enabled=self.grad_scaler)
