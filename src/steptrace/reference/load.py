"""A folder of reports/reference, read."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steptrace.errors import RecordError
from steptrace.evidence import BENCH_FOLDER, ENVIRONMENT_FILE, LEFT_OUT_FILE
from steptrace.record import read_json

Study = dict[str, Any]
Variant = dict[str, Any]


@dataclass(frozen=True)
class Results:
    """What one machine gave: its environment, comparison.json by study, the benchmarks' files by name."""

    folder: Path
    environment: dict[str, Any]
    studies: dict[str, Study]
    benchmarks: dict[str, dict[str, Any]]
    left_out: tuple[str, ...]

    @property
    def machine(self) -> str:
        """The GPU's name, or the processor's where there was none."""
        return str(self.environment.get("gpu") or self.environment.get("cpu") or "unknown machine")

    def variants(self, study: str) -> dict[str, Variant]:
        """A study's variants by name; empty if it was not run."""
        return {variant["name"]: variant for variant in self.studies.get(study, {}).get("variants", ())}


def read_results(folder: Path) -> Results:
    """Read a machine's folder, as `steptrace.evidence.collect` makes it.

    Raises:
        RecordError: it is none, or a file in it cannot be read.
    """
    if not (folder / ENVIRONMENT_FILE).is_file():
        raise RecordError("no collected results", where=folder, expected=f"a folder with {ENVIRONMENT_FILE}")
    studies = [read_json(file) for file in sorted(folder.glob("*/comparison.json"))]
    left_out = folder / LEFT_OUT_FILE
    return Results(
        folder=folder,
        environment=read_json(folder / ENVIRONMENT_FILE),
        studies={study["study"]: study for study in studies},
        benchmarks={file.stem: read_json(file) for file in sorted((folder / BENCH_FOLDER).glob("*.json"))},
        left_out=tuple(left_out.read_text(encoding="utf-8").splitlines()) if left_out.is_file() else (),
    )
