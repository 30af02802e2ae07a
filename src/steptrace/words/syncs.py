"""Numbers of syncs in words."""

from collections.abc import Iterable, Mapping
from typing import Any

from steptrace import format as fmt


def step_groups_in_words(groups: Iterable[Mapping[str, Any]], often: float | None) -> str:
    """How many steps make how many syncs: "18 of 20 steps: 2 syncs; 2 of 20 steps (one every 10): 3 syncs".

    Args:
        groups: the fields of `engine.kinds.StepGroup`.
        often: the mean per step if each group comes as often as its period says; None where the mean is the same.
    """
    words = [
        f"{group['steps']} of {group['of']} steps{_period(group['every'])}: {_range(group['least'], group['most'])}"
        for group in groups
    ]
    if often is not None:
        words.append(f"as often as they come, {fmt.count(often)} per step")
    return "; ".join(words)


def _period(steps: int | None) -> str:
    return "" if steps is None else f" (one every {steps})"


def _range(low: int, high: int) -> str:
    return f"{'' if low == high else f'{fmt.count(low)} to '}{fmt.plural(high, 'sync')}"
