"""A study's results over time: those kept as baselines (`baselines/*.json`) and the present ones, oldest first.

Step times hold for one machine, so a study's results are parted by machine and scale before they are compared.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from steptrace import baseline
from steptrace.documents.comparison import Comparison, StepTimes
from steptrace.errors import RecordError

#: What a present result is called.
NOW: Final = "now"


@dataclass(frozen=True)
class KeptResult:
    """One study's step times as they were at one time.

    Attributes:
        name: the baseline's name, or `NOW`.
        saved_at: when it was kept; None for the present result, which is the latest of all.
        environment: where it ran, with the keys of comparison.json's `environment`.
        step_ms: the measured variants' step times by name.
    """

    study: str
    name: str
    saved_at: datetime | None
    scale: str
    environment: Mapping[str, Any]
    step_ms: Mapping[str, StepTimes]

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
    try:
        saved_at = datetime.fromisoformat(document.saved_at)
    except ValueError as error:
        raise RecordError(f"saved_at: {error}", where=file, expected="a date and time as in ISO 8601") from None
    saved_at = saved_at if saved_at.tzinfo else saved_at.replace(tzinfo=UTC)
    return [
        KeptResult(
            name,
            file.stem,
            saved_at,
            study.scale,
            study.environment,
            {variant: stored.step_ms for variant, stored in study.variants.items()},
        )
        for name, study in document.studies.items()
    ]


def present_result(comparison: Comparison) -> KeptResult:
    """The present result of a study."""
    step_ms = {variant.name: variant.step_ms for variant in comparison.variants if variant.step_ms is not None}
    environment = msgspec.to_builtins(comparison.environment) or {}
    return KeptResult(comparison.study, NOW, None, comparison.scale, environment, step_ms)


def history(files: Iterable[Path], comparisons: Iterable[Comparison] = ()) -> dict[str, list[KeptResult]]:
    """Every study's results of baseline files and comparisons, oldest first; the present one last.

    Raises:
        RecordError: a file is missing or no baseline.
    """
    found = [result for file in files for result in kept_results(file)]
    found.sort(key=lambda result: (result.saved_at or datetime.max.replace(tzinfo=UTC), result.name))
    by_study: dict[str, list[KeptResult]] = {}
    for result in [*found, *map(present_result, comparisons)]:
        by_study.setdefault(result.study, []).append(result)
    return by_study
