"""The same kernel under two names: from the exact name to what it computes, the coarser only for what is left.

A new version of a library changes a kernel's template arguments, its parameters or its namespace; the kernel itself
stays. What is alike on a level is merged: several names of one side can stand against one of the other.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable

from steptrace.analysis.common.kernel_names import telling_name

Key = tuple[Hashable, ...]

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


def _computes(name: str) -> str:
    """What a kernel computes: its telling name, numbers aside (tile sizes, a compiler's numbering)."""
    return _DIGITS.sub("#", telling_name(name))


#: From the exact name to the coarsest, what two kernels must share to be one.
KERNEL_LEVELS: tuple[Callable[[Key], Key], ...] = (
    lambda key: key,
    lambda key: (key[0], normalised(str(key[1]))),
    lambda key: (key[0], telling_name(str(key[1]))),
    lambda key: (key[0], _computes(str(key[1]))),
)

#: Autograd numbers its nodes by version: `AddmmBackward` became `AddmmBackward0`.
OPERATOR_LEVELS: tuple[Callable[[Key], Key], ...] = (
    lambda key: key,
    lambda key: (re.sub(r"(Backward)\d+\Z", r"\1", str(key[0])).rstrip("_"),),
)

EXACT: tuple[Callable[[Key], Key], ...] = (lambda key: key,)


def pair(
    a: Iterable[Key], b: Iterable[Key], levels: Iterable[Callable[[Key], Key]]
) -> list[tuple[tuple[Key, ...], tuple[Key, ...]]]:
    """Which keys of the two sides are one, each key once; an empty tuple stands for none on that side."""
    left_a, left_b = list(dict.fromkeys(a)), list(dict.fromkeys(b))
    pairs: list[tuple[tuple[Key, ...], tuple[Key, ...]]] = []
    for level in levels:
        groups: defaultdict[Key, tuple[list[Key], list[Key]]] = defaultdict(lambda: ([], []))
        for which, keys in enumerate((left_a, left_b)):
            for key in keys:
                groups[level(key)][which].append(key)
        both = [(tuple(ours), tuple(theirs)) for ours, theirs in groups.values() if ours and theirs]
        pairs += both
        matched_a = {key for ours, _ in both for key in ours}
        matched_b = {key for _, theirs in both for key in theirs}
        left_a = [key for key in left_a if key not in matched_a]
        left_b = [key for key in left_b if key not in matched_b]
    return pairs + [((key,), ()) for key in left_a] + [((), (key,)) for key in left_b]
