"""The dynamic sizes and numbers of compiled code, and the conditions on them that its guards hold."""

import importlib
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from steptrace import foreign_messages as messages
from steptrace.predict.guard_values import Scope


class Symbol(NamedTuple):
    """A dynamic size, or a number, of compiled code.

    Attributes:
        symbol: its name in conditions.
        sources: expressions for the sizes that it stands for, which are equal to each other.
        low: the least value that the code is compiled for.
        high: the greatest.
        is_float: whether it is a number of type float. PyTorch compiles code with one for any value but NaN.
    """

    symbol: Any
    sources: tuple[str, ...]
    low: float
    high: float
    is_float: bool = False

    def values(self, scope: Scope) -> list[float]:
        """The values of its sources in a call, as far as they are numbers there."""
        numbers = map(scope.value_of, self.sources)
        return [number for number in numbers if isinstance(number, float if self.is_float else int)]

    def allows(self, values: Sequence[float]) -> bool:
        """Whether code is compiled for these values of its sources."""
        first = values[0]
        return self.low <= first <= self.high and all(value == first for value in values)


class Condition(NamedTuple):
    """A condition on dynamic sizes or numbers that a branch of the code or an operator has asked about.

    Attributes:
        expression: in `sympy`, of the symbols.
        text: the same in PyTorch's words.
        file: the name of the file, without its folder, of the line that asks; None if no line of the program does.
        line: that line.
        code: its text.
    """

    expression: Any
    text: str
    file: str | None
    line: int | None
    code: str | None


class DynamicSizes(NamedTuple):
    """What compiled code depends on of its dynamic sizes."""

    symbols: tuple[Symbol, ...] = ()
    conditions: tuple[Condition, ...] = ()

    @classmethod
    def of_shapes(cls, shapes: Any) -> "DynamicSizes":
        """The dynamic sizes that PyTorch has noted in a `ShapeEnv`."""
        named = {symbol: tuple(source.name for source in sources) for symbol, sources in shapes.var_to_sources.items()}
        symbols = []
        for symbol, sources in named.items():
            limits = shapes.var_to_range.get(symbol)
            if limits is not None and (limits.is_int or limits.is_float):
                low = _limit(limits.lower, -math.inf)
                high = _limit(limits.upper, math.inf)
                symbols.append(Symbol(symbol, sources, low, high, bool(limits.is_float)))
        conditions = []
        for guard in shapes.guards:
            text = str(guard.expr)
            for symbol in guard.expr.free_symbols:
                text = text.replace(str(symbol), named.get(symbol, (str(symbol),))[0])
            asked = messages.DYNAMO_LINE_OF_SIZE.find(guard.sloc.maybe_user_loc or "")
            place = (None, None, None) if asked is None else (asked["file"], int(asked["line"]), asked["code"])
            conditions.append(Condition(guard.expr, text, *place))
        return cls(tuple(symbols), tuple(conditions))

    @property
    def sources(self) -> frozenset[str]:
        """Expressions for all dynamic sizes and numbers."""
        return frozenset(source for symbol in self.symbols for source in symbol.sources)


def _limit(value: Any, unlimited: float) -> float:
    return float(value) if getattr(value, "is_finite", None) and value.is_number else unlimited


def bound(limit: float) -> str:
    """A limit of a size or a number as PyTorch writes it."""
    return str(int(limit)) if limit.is_integer() else str(limit)


def sympy_false() -> Any:
    """The constant of `sympy`, which only programs with dynamic sizes import."""
    return importlib.import_module("sympy").false
