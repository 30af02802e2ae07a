"""A study's results over time: those kept as baselines or as copies of comparison.json, the present ones, what changed.

From each result to the next that is step times with verdicts, and the environment.

Step times hold for one machine, so a study's results are parted by machine and scale before they are compared: each
with the one before it there; where both hold whole runs, as `pair` does.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from steptrace import format as fmt
from steptrace.documents.base import read
from steptrace.documents.comparison import Comparison, StepTimes
from steptrace.documents.kept import EnvironmentChange, KeptRun, KeptVariant, StudyHistory
from steptrace.documents.run import is_simulated
from steptrace.errors import RecordError
from steptrace.judging import baseline
from steptrace.judging.pair import VariantPair, pair

#: What a present result is called.
NOW: Final = "now"
#: What steptrace writes into the same folders: none of them need be a result.
_NO_RESULTS: Final = frozenset({"compare.json", "history.json", "study.json", "timing.json", "verdict.json"})
_LAST: Final = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True)
class KeptResult:
    """One study's step times as they were at one time.

    Attributes:
        name: the baseline's name, or `NOW`.
        saved_at: when it was kept; None for the present result, which is the latest of all.
        environment: where it ran, with the keys of comparison.json's `environment`.
        step_ms: the measured variants' step times by name.
        digests: of the variants' configurations, by name; None where it was not kept.
        comparison: all of it, where that was kept.
    """

    study: str
    name: str
    saved_at: datetime | None
    scale: str
    environment: Mapping[str, Any]
    step_ms: Mapping[str, StepTimes]
    digests: Mapping[str, str | None]
    comparison: Comparison | None = None

    @property
    def machine(self) -> tuple[object, ...]:
        """What has to be equal for step times to be comparable: the machine's facts and the scale."""
        return (self.scale, *(self.environment.get(key) for key in baseline.MACHINE))


def kept_results(file: Path) -> list[KeptResult]:
    """The studies in a baseline file.

    Raises:
        RecordError: the file is missing or no baseline, or its date cannot be read.
    """
    document = baseline.load(file)
    saved_at = _moment(document.saved_at, file, "saved_at")
    found = []
    for name, study in document.studies.items():
        times = {variant: stored.step_ms for variant, stored in study.variants.items()}
        digests = {variant: stored.digest for variant, stored in study.variants.items()}
        found.append(KeptResult(name, file.stem, saved_at, study.scale, study.environment, times, digests))
    return found


def kept_comparison(file: Path) -> KeptResult:
    """The study in a kept comparison.json, dated by its runs; by the file's time of change, where it does not say them.

    Raises:
        RecordError: the file is missing or no comparison, or of a study that is not done, or its date cannot be read.
    """
    advice = "keep copies of results/STUDY/comparison.json"
    comparison = read(file, Comparison, next_step=advice)
    if comparison.partial is not None:
        raise RecordError("comparison of a study that is not done", where=file, next_step=advice)
    changed_at = datetime.fromtimestamp(file.stat().st_mtime, tz=UTC)
    said = comparison.measured_at
    saved_at = changed_at if said is None else _moment(said, file, "measured_at")
    return replace(present_result(comparison), name=file.name, saved_at=saved_at)


def find_results(places: Iterable[Path]) -> tuple[dict[str, list[KeptResult]], list[tuple[Path, str]]]:
    """Every study's results in some folders, oldest first, and each other file that holds none, with the reason.

    All JSON files right in a folder are read, and those called comparison.json or NAME.comparison.json below it. A
    result that was kept twice counts once.

    Raises:
        RecordError: a place does not exist.
    """
    found: list[KeptResult] = []
    skipped: list[tuple[Path, str]] = []
    for place in places:
        if not place.exists():
            raise RecordError("there is no such file or folder", where=place)
        for file in sorted({*place.glob("*.json"), *place.rglob("*comparison.json")}) if place.is_dir() else [place]:
            name = str(file.relative_to(place)) if place.is_dir() else file.name
            try:
                found += [replace(result, name=name) for result in _results_in(file)]
            except RecordError as error:
                if file == place or file.name not in _NO_RESULTS:
                    skipped.append((file, error.what))
            except OSError as error:
                skipped.append((file, error.strerror or str(error)))
    once: list[KeptResult] = []
    for result in sorted(found, key=lambda result: result.comparison is None):  # a comparison says more than a baseline
        if not any(_same(result, other) for other in once):
            once.append(result)
    return _in_order(once), skipped


def _results_in(file: Path) -> list[KeptResult]:
    if not file.is_file():
        raise RecordError("no regular file", where=file)
    try:
        keys = msgspec.json.decode(file.read_bytes(), type=dict[str, msgspec.Raw])
    except ValueError as error:  # msgspec's, and text that is not UTF-8
        raise RecordError(f"no JSON object ({error})", where=file) from error
    if "saved_at" in keys:
        return kept_results(file)
    if "variants" not in keys:
        raise RecordError("neither a comparison.json nor a baseline", where=file)
    return [kept_comparison(file)]


def _same(a: KeptResult, b: KeptResult) -> bool:
    """Whether two are of one measurement; a baseline's date is when it was saved, which says nothing about that."""
    same_date = a.saved_at == b.saved_at or a.comparison is None or b.comparison is None
    return same_date and (a.study, a.machine, a.step_ms) == (b.study, b.machine, b.step_ms)


def _in_order(results: Iterable[KeptResult]) -> dict[str, list[KeptResult]]:
    """By study, oldest first."""
    by_study: dict[str, list[KeptResult]] = {}
    for result in sorted(results, key=lambda result: (result.saved_at or _LAST, result.name)):
        by_study.setdefault(result.study, []).append(result)
    return by_study


def _moment(said: str, file: Path, key: str) -> datetime:
    try:
        moment = datetime.fromisoformat(said)
    except ValueError as error:
        raise RecordError(f"{key}: {error}", where=file, expected="a date and time as in ISO 8601") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def present_result(comparison: Comparison) -> KeptResult:
    """The present result of a study."""
    step_ms = {variant.name: variant.step_ms for variant in comparison.variants if variant.step_ms is not None}
    digests = {variant.name: variant.digest for variant in comparison.variants}
    environment = msgspec.to_builtins(comparison.environment) or {}
    return KeptResult(comparison.study, NOW, None, comparison.scale, environment, step_ms, digests, comparison)


def history(files: Iterable[Path], comparisons: Iterable[Comparison] = ()) -> dict[str, list[KeptResult]]:
    """Every study's results of baseline files and comparisons, oldest first; the present one last.

    Raises:
        RecordError: a file is missing or no baseline.
    """
    return _in_order([*(result for file in files for result in kept_results(file)), *map(present_result, comparisons)])


#: Facts that are no reason for another step time.
_NO_CHANGE: Final = ("git_dirty",)


def trends(by_study: Mapping[str, Sequence[KeptResult]], variants: Iterable[str] = ()) -> tuple[StudyHistory, ...]:
    """Each study's results in their order, and how each differs from those before.

    Args:
        by_study: the results, oldest first (`history`).
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
            _variant(name, result, same, compared.get(name)) for name in result.step_ms if not wanted or name in wanted
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


def _variant(name: str, now: KeptResult, before: KeptResult | None, compared: VariantPair | None) -> KeptVariant:
    step, ratio, verdict = now.step_ms[name], None, None
    digests = [None if result is None else result.digests.get(name) for result in (before, now)]
    if before is not None and not is_simulated(before.environment.get("gpu")):  # one on the same machine
        earlier = before.step_ms.get(name)
        if compared is not None and compared.ratio is not None:
            ratio, verdict = compared.ratio[0], compared.verdict
        elif earlier is not None and step.median:
            ratio = earlier.median / step.median
    other = None not in digests and digests[0] != digests[1]
    return KeptVariant(name, step.median, step.low, step.high, ratio, verdict, reconfigured=other)


def _changes(before: KeptResult, now: KeptResult) -> tuple[EnvironmentChange, ...]:
    a, b = ({"scale": side.scale, **side.environment} for side in (before, now))
    return tuple(
        EnvironmentChange(key, *(None if side.get(key) is None else str(side[key]) for side in (a, b)))
        for key in dict.fromkeys([*a, *b])
        if key not in _NO_CHANGE and a.get(key) != b.get(key)
    )
