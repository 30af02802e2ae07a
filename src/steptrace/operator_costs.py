"""What a custom operator costs on a GPU, as its library or its program declares it: for estimates.

An operator that is written in C++ or CUDA says nothing about its work. Here it can. Needs the standard library only, so
that a program can import it wherever it runs.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from steptrace.errors import ConfigError

#: The types of arithmetic that estimates know.
ARITHMETIC: Final = ("float64", "float32", "tf32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")


@dataclass(frozen=True, kw_only=True)
class OperatorCost:
    """The work of one call of a custom operator on a GPU.

    Attributes:
        flop: floating-point operations. A GPU's peak counts a fused multiply-add as two, so an instruction that does
            one operation (an addition, a maximum) counts as two here if it takes as long. None: as many as a formula
            says that is registered by `torch.utils.flop_counter.register_flop_formula`, 0 without one.
        bytes: bytes that it reads and writes. None: its tensors once.
        launches: kernels that it launches.
        arithmetic: the type that it computes in, one of `ARITHMETIC`. None: the type of its first floating-point
            tensor.

    Raises:
        ConfigError: a figure is negative or not finite, or the type is not known.
    """

    flop: float | None = None
    bytes: float | None = None
    launches: int = 1
    arithmetic: str | None = None

    def __post_init__(self) -> None:
        for name in ("flop", "bytes", "launches"):
            value = getattr(self, name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if value is None and name != "launches":
                continue
            if not is_number or not math.isfinite(value) or value < 0 or (name == "launches" and value != int(value)):
                raise ConfigError(
                    f"{name} is {value!r}",
                    where="OperatorCost",
                    expected="a whole number of at least 0"
                    if name == "launches"
                    else "a number of at least 0, or None",
                )
        if self.arithmetic is not None and self.arithmetic not in ARITHMETIC:
            raise ConfigError(
                f"arithmetic is {self.arithmetic!r}", where="OperatorCost", expected=f"{', '.join(ARITHMETIC)}, or None"
            )


#: A function of an operator's arguments, by position and by name, that returns its cost.
CostFormula = Callable[..., OperatorCost]
_Formula = TypeVar("_Formula", bound=CostFormula)

_formulas: dict[str, CostFormula] = {}


def operator_cost(*operators: str) -> Callable[[_Formula], _Formula]:
    """Declare what custom operators cost on a GPU: a decorator of a function that returns an `OperatorCost`.

    While a prediction follows the program, the function is called with the arguments of each call. It gets plain CPU
    tensors. Tensors of whole numbers, small ones, and data from the host have their values. Large results of the GPU's
    arithmetic have only shape and type: their `is_meta` is true. Elsewhere the function is never called.

    Args:
        operators: names of operators with their namespace and without overload, such as "my_lib::scan".

    Returns:
        The decorator, which returns the function unchanged.

    Raises:
        ConfigError: a name has no namespace.

    Example:
        @steptrace.operator_cost("my_lib::scan")
        def _(values, weights, steps=1):
            return steptrace.OperatorCost(flop=2 * steps * values.numel())
    """
    for name in operators:
        if "::" not in name:
            raise ConfigError(f"no operator is named {name!r}", where="operator_cost", expected="NAMESPACE::NAME")

    def declare(formula: _Formula) -> _Formula:
        for name in operators:
            _formulas[name] = formula
        return formula

    return declare


def cost_formula(operator: str) -> CostFormula | None:
    """The formula of an operator, by its name with namespace and without overload; None if none was declared."""
    return _formulas.get(operator)
