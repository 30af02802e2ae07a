"""One trace on its way to summary.json: what every section of the summary takes."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pandas as pd

from steptrace.trace.model import Trace
from steptrace.trace.source import SourceLines


@dataclass(frozen=True)
class Analysis:
    """One trace with every metric's table by name.

    `device` is the GPU that figures of one GPU are about: of several the one with the most activity time, None for a
    trace without GPU work. `tables` grows section by section, so that a section can use those before it. `carried` is
    what comparisons of ranks take from the trace besides its tables of GPU work, labels and steps.
    """

    path: Path
    trace: Trace
    device: int | None
    lines: SourceLines = field(default_factory=SourceLines, repr=False)
    tables: dict[str, pd.DataFrame] = field(default_factory=dict, repr=False)
    carried: dict[str, Any] = field(default_factory=dict, repr=False)


class Section(Protocol):
    """A module of this package: the tables that its metrics make of one trace, and its part of summary.json."""

    def tables(self, analysis: Analysis) -> dict[str, pd.DataFrame]:
        """The section's tables by name; each is written to `tables/trace<k>/<name>.parquet`."""

    def record(self, analysis: Analysis) -> dict[str, Any]:
        """The keys that the section adds to the trace's entry in summary.json; what was not measured is None."""


class RankSection(Protocol):
    """A module of this package that compares the traces of several ranks."""

    def carried(self, analysis: Analysis) -> dict[str, Any]:
        """What the section needs of one trace that takes all of its tables to find, by name; small, and picklable."""

    def tables(self, analyses: list[Analysis]) -> dict[str, pd.DataFrame]:
        """The section's tables by name; each is written to `tables/ranks/<name>.parquet`."""

    def record(self, analyses: list[Analysis], tables: dict[str, pd.DataFrame]) -> dict[str, Any]:
        """The keys that the section adds to `ranks` in summary.json, from its own tables."""


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a table as plain JSON values; missing ones are None."""
    return [{str(name): plain(value) for name, value in row.items()} for row in _rows(table)]


def plain(value: Any) -> Any:
    """A value as JSON knows it: numpy's numbers become Python's, null and NaN become None."""
    if value is None or value is pd.NA or (isinstance(value, float) and np.isnan(value)):
        return None
    return value.item() if isinstance(value, np.generic) else value


def _rows(table: pd.DataFrame) -> Iterator[dict[Any, Any]]:
    yield from table.astype(object).to_dict("records")
