"""What changed from each kept result of a study to the next: step times with verdicts, and the environment.

A result is compared with the one before it on the same machine and scale; where both hold whole runs, as `pair` does.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from steptrace import format as fmt
from steptrace.documents.comparison import StepTimes
from steptrace.documents.kept import EnvironmentChange, KeptRun, KeptVariant, StudyHistory
from steptrace.documents.run import is_simulated
from steptrace.errors import RecordError
from steptrace.judging.history import KeptResult
from steptrace.judging.pair import VariantPair, pair

#: Facts that are no reason for another step time.
_NO_CHANGE: Final = ("git_dirty",)


def trends(by_study: Mapping[str, Sequence[KeptResult]], variants: Iterable[str] = ()) -> tuple[StudyHistory, ...]:
    """Each study's results in their order, and how each differs from those before.

    Args:
        by_study: the results, oldest first (`history.history`).
        variants: only these; none for all.
    """
    wanted = set(variants)
    return tuple(
        StudyHistory(study, tuple(_run(results, place, wanted) for place in range(len(results))))
        for study, results in by_study.items()
    )


def _run(results: Sequence[KeptResult], place: int, wanted: set[str]) -> KeptRun:
    result, before = results[place], results[:place]
    same = next((other for other in reversed(before) if other.machine == result.machine), None)
    compared = {} if same is None else _pairs(same, result)
    return KeptRun(
        name=result.name,
        date=None if result.saved_at is None else result.saved_at.isoformat(timespec="seconds"),
        machine=machine_of(result),
        compared_with=None if same is None else same.name,
        changes=_changes(before[-1], result) if before else (),
        variants=tuple(
            _variant(name, step, same, compared.get(name))
            for name, step in result.step_ms.items()
            if not wanted or name in wanted
        ),
    )


def machine_of(result: KeptResult) -> str:
    """The machine in words, with the scale: the facts that part `KeptResult.machine`."""
    facts = result.environment
    gpus, processors = facts.get("gpu_count") or 0, facts.get("cpu_count")
    gpu = facts.get("gpu") and f"{f'{gpus} x ' if gpus > 1 else ''}{facts['gpu']}"
    cores = processors and fmt.plural(processors, "processor")
    return ", ".join(filter(None, [gpu, facts.get("cpu") or (None if gpu else "unknown machine"), cores, result.scale]))


def _pairs(before: KeptResult, now: KeptResult) -> dict[str, VariantPair]:
    """Variants of both by name, where whole runs of both are known."""
    if before.comparison is None or now.comparison is None:
        return {}
    try:
        found = pair(before.comparison, now.comparison)
    except RecordError:  # no variant in common
        return {}
    return {variant.name: variant for variant in found.variants}


def _variant(name: str, step: StepTimes, before: KeptResult | None, compared: VariantPair | None) -> KeptVariant:
    kept = KeptVariant(name, step.median, step.low, step.high, None, None)
    if before is None or is_simulated(before.environment.get("gpu")):  # compared with one on the same machine
        return kept
    if compared is not None and compared.ratio is not None:
        return replace(kept, ratio=compared.ratio[0], verdict=compared.verdict)
    earlier = before.step_ms.get(name)
    return kept if earlier is None or not step.median else replace(kept, ratio=earlier.median / step.median)


def _changes(before: KeptResult, now: KeptResult) -> tuple[EnvironmentChange, ...]:
    sides = [{"scale": side.scale, **side.environment} for side in (before, now)]
    keys = [key for key in dict.fromkeys([*sides[0], *sides[1]]) if key not in _NO_CHANGE]
    values = [(key, sides[0].get(key), sides[1].get(key)) for key in keys]
    return tuple(EnvironmentChange(key, _said(a), _said(b)) for key, a, b in values if a != b)


def _said(value: object) -> str | None:
    return None if value is None else str(value)
