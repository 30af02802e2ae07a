"""Stored baselines: the step times of a day that later ones are held against, with the machine they were taken on.

`baselines/NAME.json` is small and made to be committed. A step time holds for one machine: against another's it is not
compared. Versions (PyTorch, driver, ...) may differ, since a new one is often the question, but that is told.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from steptrace.errors import RecordError, SteptraceError
from steptrace.files import read_json, write_json
from steptrace.gates import Baselines, Gates, baselines_of

FOLDER: Final = "baselines"
SCHEMA_VERSION: Final = 1
#: Facts of an environment that make two machines two.
MACHINE: Final = ("cpu", "cpu_count", "gpu", "gpu_count")
#: Facts that may change on one machine.
VERSIONS: Final = ("torch", "cuda", "driver", "python", "os", "steptrace")

Json = Any


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


def path_of(name: str, folder: Path | None = None) -> Path:
    """The file of a baseline: `baselines/NAME.json`, or the path itself if it is one."""
    is_path = "/" in name or name.endswith(".json")
    return (folder or Path()) / (name if is_path else f"{FOLDER}/{name}.json")


def save(comparisons: Iterable[Json], path: Path) -> dict[str, Any]:
    """Write a baseline of these comparisons (the content of comparison.json files) and return it.

    Raises:
        SteptraceError: nothing was measured.
    """
    studies = {
        comparison["study"]: {
            "scale": comparison["scale"],
            "environment": comparison["environment"],
            "variants": {
                variant["name"]: {key: variant.get(key) for key in ("digest", "step_ms", "peak_allocated_bytes")}
                for variant in comparison["variants"]
                if variant.get("step_ms") is not None
            },
        }
        for comparison in comparisons
        if comparison.get("environment") is not None
    }
    if not studies:
        raise SteptraceError("nothing was measured that could be stored", next_step="run `snakemake --cores all` first")
    document = {
        "schema_version": SCHEMA_VERSION,
        "saved_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "studies": studies,
    }
    write_json(path, document)
    return document


def load(path: Path) -> dict[str, Any]:
    """Read a baseline; `RecordError` if it is missing or none."""
    document = read_json(path)
    if not isinstance(document, dict) or not isinstance(document.get("studies"), dict):
        raise RecordError("file holds no baseline", where=path, next_step="save it anew")
    if document.get("schema_version") != SCHEMA_VERSION:
        raise RecordError(
            f"baseline has version {document.get('schema_version')}", where=path, expected=f"version {SCHEMA_VERSION}"
        )
    return document


def changes(document: Json, comparison: Json) -> list[Change]:
    """Every variant of a study that is stored or was measured now."""
    stored = document["studies"].get(comparison["study"], {}).get("variants", {})
    now = {variant["name"]: variant for variant in comparison["variants"]}
    return [
        Change(comparison["study"], name, _median(stored.get(name)), _median(now.get(name)))
        for name in dict.fromkeys([*now, *stored])
    ]


def differences(document: Json, comparison: Json, keys: Sequence[str]) -> list[str]:
    """What differs between a study's stored and present environment, one phrase a key; the scale is of the machine."""
    stored = document["studies"].get(comparison["study"])
    if stored is None:
        return []
    before, now = stored["environment"] or {}, comparison.get("environment") or {}
    found = [
        f"{key} {_said(before.get(key))}, here {_said(now.get(key))}" for key in keys if before.get(key) != now.get(key)
    ]
    if keys is MACHINE and stored["scale"] != comparison["scale"]:
        found.insert(0, f"scale {stored['scale']}, here {comparison['scale']}")
    return found


def for_gates(gates: Gates, comparison: Json, folder: Path | None = None) -> Baselines:
    """The baselines that gates name, as far as they can be held against this comparison."""
    documents: dict[str, Json] = {}
    problems: dict[str, str] = {}
    elsewhere: dict[str, str] = {}
    for name in baselines_of({comparison["study"]: gates.get(comparison["study"], {})}):
        try:
            document = load(path_of(name, folder))
        except RecordError as error:
            problems[name] = f"baseline '{name}' cannot be used ({error.where}: {error.what})"
            continue
        differing = differences(document, comparison, MACHINE)
        if differing:
            elsewhere[name] = f"baseline '{name}' is of another machine ({'; '.join(differing)})"
        documents[name] = document
    return Baselines(documents, problems, elsewhere)


def _median(variant: Json | None) -> float | None:
    step = (variant or {}).get("step_ms") or {}
    return step.get("median")


def _said(value: Any) -> str:
    return "none" if value is None else str(value)
