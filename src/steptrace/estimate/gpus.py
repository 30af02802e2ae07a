"""GPUs by name: the figures of their data sheets (gpus.toml), and those that a person adds."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from steptrace.errors import ConfigError

#: A file of this name in the working directory adds GPUs, or replaces those of the same name.
OWN_FILE: Final = "gpus.toml"
_KEYS: Final = (
    "fp32_tflops, half_tflops, bandwidth_gbs, memory_gb, pcie_gbs; tf32_tflops, bf16 and power_limited if they apply"
)
#: What occurs in the name that a driver gives a GPU, and its data sheet; the first that fits.
_GPUS: Final = (
    ("H200", "H200"), ("H100 PCIe", "H100-PCIe"), ("H100", "H100"), ("A100 80GB", "A100-80"),
    ("A100-SXM4-80GB", "A100-80"), ("A100-SXM4-40GB", "A100-40"), ("A100-PCIE-40GB", "A100-40"),
    ("A100-PG509-200", "A100-40"), ("L40S", "L40S"), ("L4", "L4"), ("A10G", "A10G"), ("Tesla T4", "T4"),
    ("Tesla V100", "V100"), ("RTX 4090", "RTX-4090"), ("RTX 3090", "RTX-3090"), ("MI300X", "MI300X"),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """Data sheet figures of a GPU, all decimal: TFLOP/s of dense arithmetic, GB/s and GB of memory, GB/s of PCIe."""

    fp32_tflops: float
    half_tflops: float
    bandwidth_gbs: float
    memory_gb: float
    pcie_gbs: float
    tf32_tflops: float | None = None
    bf16: bool = True
    power_limited: bool = False
    name: str = ""

    @property
    def bandwidth(self) -> float:
        """Bytes a second."""
        return self.bandwidth_gbs * 1e9

    def flops(self, arithmetic: str) -> float | None:
        """FLOP a second of `float32`, `tf32`, `float16` or `bfloat16`; None where the data sheet has no such figure."""
        if arithmetic == "bfloat16" and not self.bf16:
            return None
        figures = {
            "float32": self.fp32_tflops,
            "tf32": self.tf32_tflops or self.fp32_tflops,
            "float16": self.half_tflops,
            "bfloat16": self.half_tflops,
        }
        return figures[arithmetic] * 1e12 if arithmetic in figures else None


def gpu_named(name: str) -> Gpu:
    """The figures of a GPU.

    Raises:
        ConfigError: there is none of that name, or a file of own GPUs cannot be read.
    """
    own = Path(OWN_FILE)
    gpus = {**_shipped(), **(_read(own) if own.is_file() else {})}
    gpu = gpus.get(name) or next((one for one in gpus.values() if one.name.casefold() == name.casefold()), None)
    if gpu is None:
        raise ConfigError(
            f"no GPU of the name {name!r}",
            expected=f"one of {', '.join(gpus)}",
            next_step=f"add [{name}] with its data sheet's figures to a file {OWN_FILE} here: {_KEYS}",
        )
    return gpu


def gpu_of_driver(name: str | None) -> Gpu | None:
    """The data sheet of a GPU by the name that its driver gives it; None of one that is not known."""
    model = next((ours for theirs, ours in _GPUS if theirs in (name or "")), None)
    return None if model is None else gpu_named(model)


@cache
def _shipped() -> Mapping[str, Gpu]:
    return _read(Path(__file__).with_name("gpus.toml"))


def _read(path: Path) -> dict[str, Gpu]:
    try:
        content: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        gpus = {name: Gpu(**figures, name=name) for name, figures in content.items()}
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"GPUs cannot be read ({error})", where=path, expected=f"[NAME] with {_KEYS}") from error
    for gpu in gpus.values():
        for key in ("fp32_tflops", "half_tflops", "bandwidth_gbs", "memory_gb", "pcie_gbs"):
            figure = getattr(gpu, key)
            if not isinstance(figure, int | float) or figure <= 0:
                raise ConfigError(f"{gpu.name}.{key} is not a number above 0", where=path, expected="the data sheet's")
    return gpus
