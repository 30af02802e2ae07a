"""Which kernels and operators of two traces are one.

A new version of a library changes a kernel's template arguments, its parameters or its namespace; the kernel itself
stays. So names are matched from the exact one to what the kernel computes, the coarser only for what is left. What is
alike on a level is merged: several names of one side can stand against one of the other.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Final

from steptrace.analysis.common.kernel_names import full_short_name

_NUMBER = re.compile(r"(?:\(\w[\w ]*\)\s*)?\b\d+[uUlL]*\b")
_DIGITS = re.compile(r"\d+")
_LAMBDA = re.compile(r"\{lambda\([^)]*\)#?\d*\}|\[lambda\([^)]*\) \(instance \d+\)\]")
_NAMESPACE = re.compile(r"\(anonymous namespace\)::|\{anonymous\}::|(?<=::)_\w+_(?:cu|cpp)_\w+::")


def normalised(name: str) -> str:
    """A kernel's name without numbers in its template arguments, lambdas' numbers, parameters and white space."""
    text = _LAMBDA.sub("lambda", _NAMESPACE.sub("", name))
    head = text if text.startswith(("Memcpy", "Memset")) else _without_parameters(text)
    return re.sub(r"\s+", "", _NUMBER.sub("#", head))


def _without_parameters(name: str) -> str:
    """What stands before the last pair of brackets at the end of a name."""
    if not name.endswith(")"):
        return name
    depth = 0
    for place in range(len(name) - 1, -1, -1):
        depth += {")": 1, "(": -1}.get(name[place], 0)
        if depth == 0:
            return name[:place] or name
    return name


Level = Callable[[str], str]
#: From the exact name to the coarsest, what two kernels must share to be one; last what they compute, numbers aside.
KERNEL_LEVELS: Final[tuple[Level, ...]] = (
    lambda name: name,
    normalised,
    full_short_name,
    lambda name: _DIGITS.sub("#", full_short_name(name)),
)
#: Autograd numbers its nodes by version: `AddmmBackward` became `AddmmBackward0`.
OPERATOR_LEVELS: Final[tuple[Level, ...]] = (
    lambda name: name,
    lambda name: re.sub(r"(Backward)\d+\Z", r"\1", name).rstrip("_"),
)


def pair(a: Iterable[str], b: Iterable[str], levels: Iterable[Level]) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Which names of the two sides are one, each name once; only those that both sides have."""
    left_a, left_b = list(dict.fromkeys(a)), list(dict.fromkeys(b))
    pairs: list[tuple[tuple[str, ...], tuple[str, ...]]] = []
    for level in levels:
        groups: defaultdict[str, tuple[list[str], list[str]]] = defaultdict(lambda: ([], []))
        for which, names in enumerate((left_a, left_b)):
            for name in names:
                groups[level(name)][which].append(name)
        both = [(tuple(ours), tuple(theirs)) for ours, theirs in groups.values() if ours and theirs]
        pairs += both
        left_a = [name for name in left_a if not any(name in ours for ours, _ in both)]
        left_b = [name for name in left_b if not any(name in theirs for _, theirs in both)]
    return pairs
