"""How fast kernels of each class are: constants.toml, which bench/estimate_constants.py derives."""

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from steptrace.estimate.gpus import Gpu

FILE: Final = Path(__file__).with_name("constants.toml")
#: Where a class has no figures in a format, those of another, and by how much wider their spread is then.
_INSTEAD: Final[Mapping[str, tuple[str, ...]]] = {"tf32": ("16", "32"), "8": ("16",), "16": ("32",), "32": ("16",)}
_WIDER: Final = 0.25
#: Cards limited by their power sustain less of the arithmetic than others, T4's products in float32 half of it: the
#: middle between that and all of it, and the spread.
_LIMITED: Final = 0.72
_LIMITED_SPREAD: Final = 0.2
#: What an operator without a rule is taken for, so that its share can be said.
_UNKNOWN: Final = "irregular"


@dataclass(frozen=True, kw_only=True)
class Efficiency:
    """What kernels of a class reach on a GPU, as middles and spreads of the logarithm.

    Attributes:
        arithmetic: share of the data sheet's arithmetic that a kernel of 1 ms sustains.
        growth: by which power of its time at the data sheet's rate that share grows, to 3 ms.
        memory: share of the bandwidth.
        floor_us: of each launch, beside that.
        turn_us: of each wait for the memory, or time step, one after another.
        spread_turn: standard deviation of log(turn_us).
        spread_arithmetic: standard deviation of log(arithmetic) from GPU to GPU and from program to program.
        spread_memory: of log(memory).
        shape: of a single shape's time.
        tested: whether kernels of this class and format were held to published measurements.
        varies: whether the version of PyTorch and its libraries moves them by a factor, so that their spread is wide.
    """

    arithmetic: float = 0.5
    growth: float = 0.0
    memory: float = 0.5
    floor_us: float = 2.5
    turn_us: float = 0.4
    spread_turn: float = 0.4
    spread_arithmetic: float = 0.3
    spread_memory: float = 0.3
    shape: float = 0.15
    tested: bool = False
    varies: bool = False


@dataclass(frozen=True)
class Constants:
    """Efficiencies by class, number format, and GPU or architecture (empty: any), and the host's time per launch."""

    efficiencies: Mapping[tuple[str, str, str], Efficiency]
    host_us: float
    host_spread: float
    #: Of all kernels of a step together, in log: what their classes do not explain of whole programs.
    common_spread: float

    def of(self, kind: str, format_: str, gpu: Gpu) -> Efficiency:
        """The efficiency of a class as measured on this GPU, its architecture, or any; else of a like class."""
        for name in _alike(kind):
            for instead in (format_, *_INSTEAD.get(format_, ()), "none"):
                for where in (gpu.name, gpu.architecture, ""):
                    found = self.efficiencies.get((name, instead, where))
                    if found is not None:
                        if gpu.power_limited and format_ != "none":
                            found = _power_limited(found, is_own=where == gpu.name)
                        return found if (name, instead) == (kind, format_) else _wider(found)
        raise KeyError(f"constants.toml has no class {kind!r}")


def _alike(kind: str) -> tuple[str, ...]:
    """The class, and those that stand for it: its other layout, its forward pass, what nothing is known of."""
    layout = kind.replace(", channels last", "")
    return tuple(dict.fromkeys((kind, layout, layout.replace(" backward", ""), _UNKNOWN)))


def _power_limited(efficiency: Efficiency, *, is_own: bool) -> Efficiency:
    """Of a card whose clock moves with the load: even its own kernels, measured alone, say less of a program."""
    return replace(
        efficiency,
        arithmetic=efficiency.arithmetic * (1.0 if is_own else _LIMITED),
        spread_arithmetic=math.hypot(efficiency.spread_arithmetic, _LIMITED_SPREAD),
    )


def _wider(efficiency: Efficiency) -> Efficiency:
    """Of another class or format: less sure, and not held to measurements."""
    return replace(
        efficiency,
        spread_arithmetic=math.hypot(efficiency.spread_arithmetic, _WIDER),
        spread_memory=math.hypot(efficiency.spread_memory, _WIDER / 2),
        tested=False,
    )


@cache
def shipped() -> Constants:
    """The constants that come with steptrace."""
    return parse(tomllib.loads(FILE.read_text(encoding="utf-8")))


def parse(content: Mapping[str, Any]) -> Constants:
    """The constants of a file's content."""
    efficiencies = {}
    for row in content["class"]:
        figures = {name: value for name, value in row.items() if name not in ("kind", "format", "gpu", "source")}
        efficiencies[row["kind"], row["format"], row.get("gpu", "")] = Efficiency(**figures)
    return Constants(efficiencies, **content["general"])
