"""Stored baselines: the step times of a day that later ones are held against, with the machine they were taken on.

`baselines/NAME.json` is small and made to be committed. A step time holds for one machine: against another's it is not
compared. Versions (PyTorch, driver, ...) may differ, since a new one is often the question, but that is reported.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from steptrace.documents import base
from steptrace.documents.comparison import Comparison
from steptrace.documents.kept import Baseline, StoredStudy, StoredVariant
from steptrace.errors import RecordError, SteptraceError
from steptrace.judging.gates import Baselines, Gates, baselines_of

FOLDER: Final = "baselines"
#: Facts of an environment that make two machines two.
MACHINE: Final = ("cpu", "cpu_count", "gpu", "gpu_count")
#: Facts that may change on one machine.
VERSIONS: Final = ("torch", "cuda", "driver", "python", "os", "steptrace")


@dataclass(frozen=True)
class Change:
    """A variant's median step time, stored and now, in ms; `ratio` is now over stored, so above 1 is slower.

    A time is None where it was not measured, the ratio where either is.
    """

    study: str
    variant: str
    stored_ms: float | None
    now_ms: float | None

    @property
    def ratio(self) -> float | None:
        """How many times the stored step time the present one is."""
        return None if not self.stored_ms or self.now_ms is None else self.now_ms / self.stored_ms


def path_of(name: str) -> Path:
    """The file of a baseline: `baselines/NAME.json`, or the path itself if it is one."""
    return Path(name if "/" in name or name.endswith(".json") else f"{FOLDER}/{name}.json")


def kept_baselines() -> list[Path]:
    """The files in `baselines/` that may be baselines."""
    return sorted(file for file in Path(FOLDER).glob("*.json") if file.is_file())


def save(comparisons: Iterable[Comparison], path: Path) -> Baseline:
    """Write a baseline of these comparisons and return it.

    Raises:
        SteptraceError: nothing was measured.
    """
    studies = {
        comparison.study: StoredStudy(
            scale=comparison.scale,
            environment=msgspec.to_builtins(comparison.environment),
            variants={
                variant.name: StoredVariant(
                    digest=variant.digest,
                    step_ms=variant.step_ms,
                    peak_allocated_bytes=variant.peak_allocated_bytes,
                )
                for variant in comparison.variants
                if variant.step_ms is not None
            },
        )
        for comparison in comparisons
        if comparison.environment is not None
    }
    if not studies:
        raise SteptraceError("nothing was measured that could be stored", next_step="run `snakemake --cores all` first")
    document = Baseline(
        saved_at=datetime.now(UTC).isoformat(timespec="seconds"),
        studies=studies,
    )
    base.write(path, document)
    return document


def load(path: Path) -> Baseline:
    """Read a baseline; `RecordError` if it is missing or none."""
    return base.read(path, Baseline, next_step="save it anew: steptrace baseline save")


def changes(document: Baseline, comparison: Comparison) -> list[Change]:
    """Every variant of a study that is stored or was measured now."""
    study = document.studies.get(comparison.study)
    stored = {} if study is None else {name: variant.step_ms.median for name, variant in study.variants.items()}
    now = {v.name: v.median_ms for v in comparison.variants}
    return [Change(comparison.study, name, stored.get(name), now.get(name)) for name in dict.fromkeys([*now, *stored])]


def differences(document: Baseline, comparison: Comparison, keys: Sequence[str]) -> list[str]:
    """What differs between a study's stored and present environment, one phrase a key; the scale is of the machine."""
    stored = document.studies.get(comparison.study)
    if stored is None:
        return []
    before, now = stored.environment, msgspec.to_builtins(comparison.environment) or {}
    found = [
        f"{key} {_text_or_none(before.get(key))}, here {_text_or_none(now.get(key))}"
        for key in keys
        if before.get(key) != now.get(key)
    ]
    if keys is MACHINE and stored.scale != comparison.scale:
        found.insert(0, f"scale {stored.scale}, here {comparison.scale}")
    return found


def for_gates(gates: Gates, comparison: Comparison) -> Baselines:
    """The baselines that gates name, as far as they can be held against this comparison."""
    documents: dict[str, Baseline] = {}
    problems: dict[str, str] = {}
    elsewhere: dict[str, str] = {}
    for name in baselines_of({comparison.study: gates.get(comparison.study, {})}):
        try:
            document = load(path_of(name))
        except RecordError as error:
            problems[name] = f"baseline '{name}' cannot be used ({error.where}: {error.what})"
            continue
        differing = differences(document, comparison, MACHINE)
        if differing:
            elsewhere[name] = f"baseline '{name}' is of another machine ({'; '.join(differing)})"
        documents[name] = document
    return Baselines(documents, problems, elsewhere)


def _text_or_none(value: object) -> str:
    return "none" if value is None else str(value)
