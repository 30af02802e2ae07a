"""The kinds of the unprofiled steps before a trace, with the syncs of the profiled ones."""

import statistics
from collections.abc import Sequence
from typing import Final, Literal

from steptrace.documents.run import Unprofiled
from steptrace.documents.step_kinds import StepKind
from steptrace.engine.kinds import Kind, kinds_of, nearest, other_steps, per_step, period

_NAMES: Final[tuple[Literal["usual", "other"], ...]] = ("usual", "other")


def step_kinds(
    unprofiled: Unprofiled | None, profiled_ns: Sequence[int], syncs: Sequence[int] | None
) -> tuple[StepKind, ...]:
    """Usual and other steps; none where all are alike.

    Args:
        unprofiled: the times of the steps before the trace, None where none were timed.
        profiled_ns: the times of the steps in it.
        syncs: how many each of these made; None where that was not measured.
    """
    kinds = () if unprofiled is None else kinds_of(unprofiled.step_ns, unprofiled.operators)
    if unprofiled is None or len(kinds) < len(_NAMES):
        return ()
    counts: tuple[float | None, ...] = (None,) * len(kinds)
    if syncs is not None:
        counts = per_step(kinds, _by_distance(unprofiled, len(profiled_ns)) or nearest(kinds, profiled_ns), syncs)
    return tuple(
        StepKind(name, kind.steps, kind.of, round(kind.typical), kind.share, _comes(kind), count)
        for name, kind, count in zip(_NAMES, kinds, counts, strict=True)
    )


def _by_distance(unprofiled: Unprofiled, steps: int) -> list[int] | None:
    """The kind of each profiled step, by its distance from the others before it; None where they are not periodic."""
    others, timed = other_steps(unprofiled.step_ns, unprofiled.operators), len(unprofiled.step_ns)
    every = period(others, timed)
    if every is None or unprofiled.until_recorded is None:
        return None
    first = timed + unprofiled.until_recorded - others[-1]
    return [int((first + number) % every == 0) for number in range(steps)]


def _comes(kind: Kind) -> str:
    """How often steps of a kind come."""
    if 2 * kind.steps > kind.of:
        return "mostly"
    if kind.every is not None:
        return f"every {kind.every} steps"
    return "once" if kind.steps == 1 else "irregularly"


def mean_ns(unprofiled: Unprofiled | None) -> int | None:
    """The mean time of the steps before the trace; None where none were timed."""
    return None if unprofiled is None or not unprofiled.step_ns else round(statistics.mean(unprofiled.step_ns))
