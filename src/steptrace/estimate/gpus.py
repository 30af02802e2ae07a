"""GPUs by name: the figures of their data sheets (gpus.toml), and those that a person adds."""

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cache
from pathlib import Path
from typing import Any, Final

from steptrace.errors import ConfigError

#: A file of this name in the working directory adds GPUs, or replaces those of the same name.
OWN_FILE: Final = "gpus.toml"
_KEYS: Final = (
    "fp32_tflops, half_tflops, bandwidth_gbs, memory_gb, pcie_gbs; "
    "tf32_tflops, fp8_tflops, bf16, link_gbs, architecture and power_limited if they apply"
)
_OPTIONAL: Final = ("tf32_tflops", "fp8_tflops", "link_gbs")
_RATES: Final = ("fp32_tflops", "half_tflops", "bandwidth_gbs", "memory_gb", "pcie_gbs", *_OPTIONAL)
#: From this ratio of equal letters on a name may have been meant.
_ALIKE: Final = 0.8
#: What occurs in the name that a driver gives a GPU, and its data sheet; the first that fits.
_GPUS: Final = (
    ("GB200", "GB200"), ("B200", "B200"), ("H200", "H200"), ("H100 NVL", "H100-NVL"), ("H100 PCIe", "H100-PCIe"),
    ("H100", "H100"), ("A100 80GB", "A100-80"), ("A100-SXM4-80GB", "A100-80"), ("A100-SXM4-40GB", "A100-40"),
    ("A100-PCIE-40GB", "A100-40"), ("A100-PG509-200", "A100-40"), ("L40S", "L40S"), ("L4", "L4"), ("A10G", "A10G"),
    ("Tesla T4", "T4"), ("Tesla V100", "V100"), ("RTX PRO 6000 Blackwell", "RTX-PRO-6000"), ("RTX 5090", "RTX-5090"),
    ("RTX 4090", "RTX-4090"), ("RTX 3090", "RTX-3090"), ("MI300X", "MI300X"),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """Data sheet figures of a GPU: TFLOP/s of dense arithmetic and GB/s are decimal, `memory_gb` counts 2^30 bytes."""

    fp32_tflops: float
    half_tflops: float
    bandwidth_gbs: float
    memory_gb: float
    pcie_gbs: float
    tf32_tflops: float | None = None
    fp8_tflops: float | None = None
    link_gbs: float | None = None
    architecture: str = ""
    bf16: bool = True
    power_limited: bool = False
    name: str = ""

    @property
    def bandwidth(self) -> float:
        """Bytes a second."""
        return self.bandwidth_gbs * 1e9

    @property
    def memory_bytes(self) -> float:
        """Bytes of memory."""
        return self.memory_gb * 2**30

    def flops(self, arithmetic: str) -> float | None:
        """FLOP a second of a type of arithmetic such as `tf32` or `bfloat16`; None where the data sheet has none."""
        if arithmetic == "bfloat16" and not self.bf16:
            return None
        figures = {
            "float32": self.fp32_tflops,
            "tf32": self.tf32_tflops or self.fp32_tflops,
            "float16": self.half_tflops,
            "bfloat16": self.half_tflops,
            "float8_e4m3fn": self.fp8_tflops,
            "float8_e5m2": self.fp8_tflops,
        }
        figure = figures.get(arithmetic)
        return None if figure is None else figure * 1e12


def gpu_named(name: str) -> Gpu:
    """The figures of a GPU.

    Raises:
        ConfigError: there is none of that name, or a file of own GPUs cannot be read.
    """
    own = Path(OWN_FILE)
    gpus = {**shipped(), **(_read(own) if own.is_file() else {})}
    gpu = gpus.get(name) or next((one for one in gpus.values() if one.name.casefold() == name.casefold()), None)
    if gpu is None:
        alike = _meant(name, gpus)
        meant = f"did you mean {' or '.join(alike)}? Otherwise " if alike else ""
        raise ConfigError(
            f"no GPU of the name {name!r}",
            expected=f"one of {', '.join(gpus)}",
            next_step=f"{meant}add [{name}] with its data sheet's figures to a file {OWN_FILE} here: {_KEYS}",
        )
    return gpu


def gpu_of_driver(name: str | None) -> Gpu | None:
    """The data sheet of a GPU by the name that its driver gives it; None of one that is not known."""
    model = next((ours for theirs, ours in _GPUS if theirs in (name or "")), None)
    return None if model is None else gpu_named(model)


def _meant(asked: str, names: Iterable[str]) -> list[str]:
    """The names of which one may have been meant: they begin alike, or else differ by a letter or two."""
    short = {name: _short(name) for name in names}
    mine = _short(asked)
    if not mine:
        return []
    alike = [name for name, ours in short.items() if ours.startswith(mine) or mine.startswith(ours)]
    return alike or [short_name for short_name, ours in short.items() if _ratio(mine, ours) >= _ALIKE]


def _short(name: str) -> str:
    """The letters and digits that tell a GPU: without its maker, as `RTX` is often left out."""
    return re.sub(r"nvidia|geforce|tesla|rtx|[^a-z0-9]", "", name.casefold())


def _ratio(a: str, b: str) -> float:
    return SequenceMatcher(None, a, b).ratio()


@cache
def shipped() -> Mapping[str, Gpu]:
    """Those of steptrace, by name."""
    return _read(Path(__file__).with_name("gpus.toml"))


def _read(path: Path) -> dict[str, Gpu]:
    try:
        content: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        gpus = {name: Gpu(**figures, name=name) for name, figures in content.items()}
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"GPUs cannot be read ({error})", where=path, expected=f"[NAME] with {_KEYS}") from error
    for gpu in gpus.values():
        for key in _RATES:
            figure = getattr(gpu, key)
            missing = figure is None and key in _OPTIONAL
            if not missing and (isinstance(figure, bool) or not isinstance(figure, int | float) or figure <= 0):
                raise ConfigError(f"{gpu.name}.{key} is not a number above 0", where=path, expected="the data sheet's")
    return gpus
