"""The kinds of the unprofiled steps before a trace, with the syncs of the profiled ones."""

import statistics
from collections.abc import Sequence

from steptrace.documents.run import Unprofiled
from steptrace.documents.steps import StepKind
from steptrace.engine.kinds import Kind, kind_after, kinds_of, nearest, per_step


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
    if unprofiled is None or not kinds[1:]:
        return ()
    counts: tuple[float | None, ...] = (None,) * len(kinds)
    if syncs is not None:
        passed = unprofiled.until_recorded
        of_kind = nearest(kinds, profiled_ns)
        if passed is not None and all(kind.every is not None for kind in kinds[1:]):
            of_kind = [kind_after(kinds, passed + number) for number in range(len(profiled_ns))]
        counts = per_step(kinds, of_kind, syncs)
    return tuple(
        StepKind(name, kind.steps, kind.of, round(kind.typical), kind.share, _comes(kind), count)
        for name, kind, count in zip(_names(len(kinds)), kinds, counts, strict=True)
    )


def _names(kinds: int) -> list[str]:
    return ["usual", "other", *(f"other {number}" for number in range(2, kinds))][:kinds]


def _comes(kind: Kind) -> str:
    """How often steps of a kind come."""
    if kind.every is not None:
        return f"every {kind.every} steps"
    if 2 * kind.steps >= kind.of:
        return "mostly"
    return "once" if kind.steps == 1 else "irregularly"


def mean_ns(unprofiled: Unprofiled | None) -> int | None:
    """The mean time of the steps before the trace; None where none were timed."""
    return None if unprofiled is None or not unprofiled.step_ns else round(statistics.mean(unprofiled.step_ns))
