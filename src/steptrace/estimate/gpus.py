"""GPUs by name: the figures of their data sheets (gpus.toml), and GPUs that a user adds."""

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cache
from pathlib import Path
from typing import Any, Final

from steptrace import format as fmt
from steptrace.errors import ConfigError
from steptrace.files import read_bytes

#: A file of this name in the working directory adds GPUs, or replaces those of the same name.
OWN_FILE: Final = "gpus.toml"
_KEYS: Final = (
    "fp32_tflops, half_tflops, bandwidth_gbs, memory_gb, pcie_gbs; "
    "fp64_tflops, tf32_tflops, fp8_tflops, bf16, link_gbs, watts, architecture, forms, words and power_limited "
    "if they apply"
)
_OPTIONAL: Final = ("fp64_tflops", "tf32_tflops", "fp8_tflops", "link_gbs", "watts")
_RATES: Final = ("fp32_tflops", "half_tflops", "bandwidth_gbs", "memory_gb", "pcie_gbs", *_OPTIONAL)
#: Architectures whose tensor cores are fed by the same instructions, so that libraries have the same kernels for them:
#: by warps since Volta, by groups of warps on Hopper, by single threads on Blackwell. GeForce cards are left out: their
#: rate with float32 sums is halved.
_FAMILIES: Final = {
    **dict.fromkeys(("Volta", "Turing", "Ampere", "Ampere A10", "Ada", "Blackwell PRO"), "fed by warps"),
    "Hopper": "fed by warp groups",
    "Blackwell": "fed by threads",
}
#: Families whose tensor cores are fed faster than by warps.
_FASTER_FEEDS: Final = ("fed by warp groups", "fed by threads")
#: Words that may stand in the name of any GPU and do not tell it from another.
_MAKERS: Final = frozenset(("nvidia", "amd", "geforce", "rtx", "tesla", "instinct", "gpu", "hgx", "dgx", "aws"))
#: Ways to write an amount of memory; without a unit as well.
_UNITS: Final = ("", "g", "gb", "gib")
_MEMORY: Final = re.compile(r"(\d+)gb")
#: A name with at least this ratio of equal letters is suggested.
_ALIKE: Final = 0.8
#: A part of the name that the driver reports, and the name of the data sheet; the first match counts.
_GPUS: Final = (
    ("GB200", "GB200"), ("B200", "B200"), ("H200", "H200"), ("H100 NVL", "H100-NVL"), ("H100 PCIe", "H100-PCIe"),
    ("H100", "H100"), ("A100 80GB", "A100-PCIe-80"), ("A100-SXM4-80GB", "A100-80"), ("A100-SXM4-40GB", "A100-40"),
    ("A100-PCIE-40GB", "A100-PCIe-40"), ("A100-PG509-200", "A100-40"), ("L40S", "L40S"), ("L4", "L4"),
    ("A10G", "A10G"),
    ("Tesla T4", "T4"),
    ("V100-SXM2-32GB", "V100-SXM2-32"), ("V100-SXM2", "V100-SXM2"), ("Tesla V100", "V100"),
    ("RTX PRO 6000 Blackwell", "RTX-PRO-6000"), ("RTX 5090", "RTX-5090"),
    ("RTX 4090", "RTX-4090"), ("RTX 3090", "RTX-3090"), ("MI300X", "MI300X"),
)  # fmt: skip
#: In a driver's name: another card than the one of the same number, or a part of a card. Their figures differ.
_OTHER_CARD: Final = re.compile(r"\b(Ti|D|SUPER|Laptop|Max-Q|MIG|H200 NVL)\b")


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """Data sheet figures of a GPU: TFLOP/s of dense arithmetic and GB/s are decimal, `memory_gb` counts 2^30 bytes.

    `watts`: the most power that the board draws. `forms`: cards that are sold under the name, if they differ in power
    and clock; the figures are those of the first. `words`: what may stand beside the name where the card is meant, such
    as its form and its memory.
    """

    fp32_tflops: float
    half_tflops: float
    bandwidth_gbs: float
    memory_gb: float
    pcie_gbs: float
    fp64_tflops: float | None = None
    tf32_tflops: float | None = None
    fp8_tflops: float | None = None
    link_gbs: float | None = None
    watts: float | None = None
    architecture: str = ""
    forms: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
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

    @property
    def is_fed_by_warps(self) -> bool:
        """Whether kernels that feed tensor cores by warps are the fastest."""
        return self.family not in _FASTER_FEEDS

    @property
    def family(self) -> str:
        """The GPUs whose tensor cores run the same library kernels; empty if no other architecture shares them."""
        return _FAMILIES.get(self.architecture, "")

    def flops(self, arithmetic: str) -> float | None:
        """FLOP per second of a type of arithmetic, such as `tf32` or `bfloat16`; None if the data sheet has none."""
        if arithmetic == "bfloat16" and not self.bf16:
            return None
        figures = {
            "float64": self.fp64_tflops,
            "float32": self.fp32_tflops,
            "tf32": self.tf32_tflops or self.fp32_tflops,
            "float16": self.half_tflops,
            "bfloat16": self.half_tflops,
            "float8_e4m3fn": self.fp8_tflops,
            "float8_e5m2": self.fp8_tflops,
            "int8": self.fp8_tflops or 2 * self.half_tflops,
        }
        figure = figures.get(arithmetic)
        return None if figure is None else figure * 1e12


def gpu_named(name: str) -> Gpu:
    """The figures of a GPU.

    Letters may be small or capital, and separators may be left out. The maker and words that describe the same card may
    stand beside the name: `h100`, `RTX 4090`, `NVIDIA A100-SXM4-80GB`.

    Raises:
        ConfigError: there is no GPU of that name, or the user's gpus.toml cannot be read.
    """
    user_file = Path(OWN_FILE)
    gpus = {**shipped(), **(_read(user_file) if user_file.is_file() else {})}
    same = [gpu for gpu in gpus.values() if gpu.name.casefold() == name.casefold()]
    matches = [gpus[name]] if name in gpus else same[:1] or _called(gpus.values(), name)
    if len(matches) != 1:
        alike = [gpu.name for gpu in matches] or _meant(name, gpus)
        meant = f"did you mean {' or '.join(alike)}? Otherwise " if alike else ""
        raise ConfigError(
            f"no GPU of the name {name!r}",
            expected=f"one of {', '.join(gpus)}",
            next_step=f"{meant}add [{name}] with its data sheet's figures to a file {OWN_FILE} here: {_KEYS}",
        )
    return matches[0]


def gpu_of_driver(name: str | None) -> Gpu | None:
    """The data sheet of a GPU by the name that its driver reports; None if the GPU is not known."""
    if name is None or _OTHER_CARD.search(name):
        return None
    model = next((ours for theirs, ours in _GPUS if re.search(rf"\b{re.escape(theirs)}\b", name)), None)
    return None if model is None else gpu_named(model)


def _called(gpus: Iterable[Gpu], asked: str) -> list[Gpu]:
    """The GPUs that a name may mean: of those whose parts it holds, the ones with the most parts."""
    matches = [gpu for gpu in gpus if _is_called(gpu, asked)]
    most = max((gpu.name.count("-") for gpu in matches), default=0)
    return [gpu for gpu in matches if gpu.name.count("-") == most]


def _is_called(gpu: Gpu, asked: str) -> bool:
    """Whether a name holds all parts of a GPU's name, and beside them only words that may stand there."""
    parts = frozenset(_squeezed(part) for part in gpu.name.split("-")) - _MAKERS
    needed = {part: _spellings(f"{part}gb") if part == fmt.plain(gpu.memory_gb) else (part,) for part in parts}
    beside = _MAKERS.union(*(_spellings(_squeezed(word)) for word in (*gpu.words, *gpu.forms)))
    return _consists_of(_squeezed(asked), needed, beside)


def _consists_of(name: str, needed: Mapping[str, tuple[str, ...]], beside: frozenset[str]) -> bool:
    """Whether a name can be cut into one spelling of each needed part, and words that may stand beside them."""
    if not name:
        return not needed
    for part, spellings in needed.items():
        rest = {other: needed[other] for other in needed if other != part}
        if any(
            name.startswith(spelling) and _consists_of(name[len(spelling) :], rest, beside) for spelling in spellings
        ):
            return True
    return any(name.startswith(word) and _consists_of(name[len(word) :], needed, beside) for word in beside)


def _spellings(word: str) -> tuple[str, ...]:
    """A word, or an amount of memory with each unit."""
    memory = _MEMORY.fullmatch(word)
    return (word,) if memory is None else tuple(f"{memory[1]}{unit}" for unit in _UNITS)


def _meant(asked: str, names: Iterable[str]) -> list[str]:
    """Names to suggest: those that begin alike, or without any, those that differ by a letter or two."""
    short = {name: _short(name) for name in names}
    mine = _short(asked)
    if not mine:
        return []
    alike = [
        name
        for name in names
        if (short[name].startswith(mine) or mine.startswith(_short(name.partition("-")[0]) or short[name]))
        and not ("sxm" in mine and "pcie" in short[name])
    ]
    return alike or [short_name for short_name, ours in short.items() if _ratio(mine, ours) >= _ALIKE]


def _short(name: str) -> str:
    """The letters and digits that identify a GPU, without words that may stand in any name."""
    return re.sub("|".join(sorted(_MAKERS)), "", _squeezed(name))


def _squeezed(name: str) -> str:
    """The small letters and digits of a name."""
    return re.sub(r"[^a-z0-9]", "", name.casefold())


def _ratio(a: str, b: str) -> float:
    return SequenceMatcher(None, a, b).ratio()


@cache
def shipped() -> Mapping[str, Gpu]:
    """The GPUs that steptrace knows, by name."""
    return _read(Path(__file__).with_name("gpus.toml"))


def _read(path: Path) -> dict[str, Gpu]:
    try:
        content: dict[str, Any] = tomllib.loads(read_bytes(path).decode("utf-8"))
        gpus = {
            name: Gpu(**{**figures, **{key: tuple(figures.get(key, ())) for key in ("forms", "words")}}, name=name)
            for name, figures in content.items()
        }
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise ConfigError(f"GPUs cannot be read ({error})", where=path, expected=f"[NAME] with {_KEYS}") from error
    for gpu in gpus.values():
        for key in _RATES:
            figure = getattr(gpu, key)
            missing = figure is None and key in _OPTIONAL
            if not missing and (isinstance(figure, bool) or not isinstance(figure, int | float) or figure <= 0):
                raise ConfigError(f"{gpu.name}.{key} is not a number above 0", where=path, expected="the data sheet's")
    return gpus
