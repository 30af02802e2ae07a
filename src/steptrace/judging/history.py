"""A study's results over time: those kept as baselines or as copies of comparison.json, and the present ones.

Step times hold for one machine, so a study's results are parted by machine and scale before they are compared.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from steptrace.documents.base import read
from steptrace.documents.comparison import Comparison, StepTimes
from steptrace.errors import RecordError
from steptrace.judging import baseline

#: What a present result is called.
NOW: Final = "now"
_LAST: Final = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True)
class KeptResult:
    """One study's step times as they were at one time.

    Attributes:
        name: the baseline's name, or `NOW`.
        saved_at: when it was kept; None for the present result, which is the latest of all.
        environment: where it ran, with the keys of comparison.json's `environment`.
        step_ms: the measured variants' step times by name.
        comparison: all of it, where that was kept.
    """

    study: str
    name: str
    saved_at: datetime | None
    scale: str
    environment: Mapping[str, Any]
    step_ms: Mapping[str, StepTimes]
    comparison: Comparison | None = None

    @property
    def machine(self) -> tuple[object, ...]:
        """What has to be equal for step times to be comparable: the machine's facts and the scale."""
        return (self.scale, *(self.environment.get(key) for key in baseline.MACHINE))

    @property
    def versions(self) -> dict[str, object]:
        """The versions that it ran with: PyTorch, driver, ..."""
        return {key: self.environment.get(key) for key in baseline.VERSIONS}


def kept_results(file: Path) -> list[KeptResult]:
    """The studies in a baseline file.

    Raises:
        RecordError: the file is missing or no baseline, or its date cannot be read.
    """
    document = baseline.load(file)
    saved_at = _moment(document.saved_at, file, "saved_at")
    times = {
        name: {v: stored.step_ms for v, stored in study.variants.items()} for name, study in document.studies.items()
    }
    return [
        KeptResult(name, file.stem, saved_at, study.scale, study.environment, times[name])
        for name, study in document.studies.items()
    ]


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
    """Every study's results in some folders, oldest first, and each file that holds none, with the reason.

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
    environment = msgspec.to_builtins(comparison.environment) or {}
    return KeptResult(comparison.study, NOW, None, comparison.scale, environment, step_ms, comparison)


def history(files: Iterable[Path], comparisons: Iterable[Comparison] = ()) -> dict[str, list[KeptResult]]:
    """Every study's results of baseline files and comparisons, oldest first; the present one last.

    Raises:
        RecordError: a file is missing or no baseline.
    """
    return _in_order([*(result for file in files for result in kept_results(file)), *map(present_result, comparisons)])
