"""Gates in words: why one is broken, or was skipped."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from steptrace import format as fmt
from steptrace.documents.comparison import GateOutcome, GateReasonCode
from steptrace.words.prediction import awaited_in_words
from steptrace.words.sites import site_in_words


def gate_text(gate: GateOutcome) -> str:
    """The sentence on a gate that does not hold, or was skipped; empty of one that holds."""
    reasons = [_WORDS[reason.code](**reason.figures) for reason in gate.reasons]
    if gate.outcome == "held" or not reasons:
        return ""
    if gate.outcome == "skipped":
        return "; ".join(reasons)
    counted = f" ({gate.counted})" if gate.counted else ""
    shown = f"{gate.study}/{gate.variant} {gate.key}{counted}"
    if any(reason.code == "cannot_be_checked" for reason in gate.reasons):
        return f"{shown} {' and '.join(reasons)}"
    allowed = " beyond those allowed" if gate.limits.get("allow") else ""
    value = fmt.NOT_MEASURED if gate.value is None else _figure(gate.value)
    text = f"{shown}{allowed} is {value}, {' and '.join(reasons)}"
    return text + (f": {'; '.join(map(site_in_words, gate.sites))}" if gate.sites else "")


def not_covered_in_words(gate: GateOutcome) -> list[str]:
    """A sentence for each line at which the program waits for a step that the gate's prediction did not follow."""
    return [
        f"{gate.study}/{gate.variant} {gate.key} does not cover this: "
        f"{awaited_in_words(branch, gate.followed_steps)} (allow the line if it does not matter)"
        for branch in gate.not_covered
    ]


def machines_in_words(differing: Iterable[tuple[str, Any, Any]]) -> str:
    """The differences of two results' machines: each key with its value before and here."""
    return "; ".join(f"{key} {_word(before)}, here {_word(now)}" for key, before, now in differing)


def _word(value: object) -> str:
    return "none" if value is None else str(value)


def _figure(value: object) -> str:
    return fmt.six_digits(value) if isinstance(value, float) else str(value)


def _cannot_be_checked(*, error: str, hint: str | None) -> str:
    return f"cannot be checked: {error}{f', {hint}' if hint else ''}"


def _branch_not_followed(*, file: str, line: int, every: int, steps: int) -> str:
    return (
        f"but {file}:{line} does something else every {every} steps, and only {steps} were followed (set "
        f"`predicted_steps: {every}`, or allow the line)"
    )


def _no_value_for_ratio(*, baseline: str, before: float, at_most: Any) -> str:
    return f"expected at most {at_most} times the {fmt.six_digits(before)} of baseline '{baseline}'"


def _above_ratio(*, baseline: str, before: float, ratio: float, at_most: Any) -> str:
    times = f"{fmt.factor(ratio, decimals=3)} times the {fmt.six_digits(before)} of baseline '{baseline}'"
    return f"{times}, expected at most {at_most} times"


def _other_machine(*, baseline: str, differing: Iterable[tuple[str, Any, Any]]) -> str:
    return f"baseline '{baseline}' is from another machine ({machines_in_words(differing)})"


_WORDS: Final[Mapping[GateReasonCode, Callable[..., str]]] = {
    "did_not_run": lambda *, name: f"{name} did not run",
    "other_scale": lambda *, scale: f"for scale {scale} alone",
    "other_machine": _other_machine,
    "cannot_be_checked": _cannot_be_checked,
    "not_equal": lambda *, expected: f"expected {expected}",
    "below": lambda *, at_least: f"expected at least {at_least}",
    "above": lambda *, at_most: f"expected at most {at_most}",
    "branch_not_followed": _branch_not_followed,
    "baseline_unusable": lambda *, baseline, error: f"baseline '{baseline}' cannot be used ({error})",
    "baseline_without_value": lambda *, baseline, at_most: (
        f"expected at most {at_most} times the value of baseline '{baseline}', which has none"
    ),
    "no_value_for_ratio": _no_value_for_ratio,
    "above_ratio": _above_ratio,
}
