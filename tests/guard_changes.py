"""Functions whose later calls fail a guard of torch.compile, for what is measured and for what is predicted."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

T = torch.zeros


def scaled(x: Tensor, factor: Any) -> Tensor:
    return x * factor


def applied(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return function(x)


def summed(x: Tensor, parts: Any) -> Tensor:
    return x + sum(parts)


def weighted(x: Tensor, weights: dict[str, float]) -> Tensor:
    for name in weights:
        x = x + weights[name]
    return x


def increased(x: Tensor) -> Tensor:
    return x + 1


def added(x: Tensor, y: Tensor) -> Tensor:
    return x + y


def chosen(x: Tensor, flag: bool) -> Tensor:  # noqa: FBT001
    return x + 2 if flag else x + 1


def named(x: Tensor, name: str) -> Tensor:
    return x + len(name)


ONE = T(3)
#: A function, calls of it of which the last one compiles it again, the guard's kind, and what it looks at.
CHANGES: dict[str, tuple[Any, list[tuple[Any, ...]], str, str, int | None]] = {
    "size": (increased, [(T(3, 4),), (T(3, 5),)], "size", "x", 1),
    "rank": (increased, [(T(3),), (T(3, 5),)], "rank", "x", None),
    "stride": (increased, [(T(3, 3),), (T(3, 3).t(),)], "stride", "x", 0),
    "dtype": (increased, [(T(3),), (T(3).double(),)], "dtype", "x", None),
    "requires_grad": (increased, [(T(3),), (T(3, requires_grad=True),)], "requires_grad", "x", None),
    "device": (increased, [(T(3),), (T(3, device="meta"),)], "device", "x", None),
    "kind of tensor": (increased, [(T(3),), (nn.Parameter(T(3)),)], "type", "x", None),
    "value": (scaled, [(T(3), 2), (T(3), 3)], "value", "factor", None),
    "text": (named, [(T(3), "a"), (T(3), "b")], "value", "name", None),
    "flag": (chosen, [(T(3), True), (T(3), False)], "value", "flag", None),
    "length": (summed, [(T(3), [1]), (T(3), [1, 2])], "length", "parts", None),
    "key": (
        weighted,
        [(T(3), {"a": 1.0, "b": 2.0}), (T(3), {"a": 1.0, "c": 2.0})],
        "value",
        "list(dict.keys(weights))[1]",
        None,
    ),
    "type": (summed, [(T(3), [1]), (T(3), (1,))], "type", "parts", None),
    "object": (applied, [(torch.sin, T(3)), (torch.cos, T(3))], "object", "function", None),
    "alias": (added, [(ONE, ONE), (T(3), T(3))], "alias", "x is y", None),
}
