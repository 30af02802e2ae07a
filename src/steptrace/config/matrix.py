"""The matrix of a study: every combination of its values, each a cell that multiplies the study's variants."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steptrace.errors import ConfigError
from steptrace.names import file_safe, shorten


@dataclass(frozen=True)
class Cell:
    """One combination of the matrix: a suffix for names and its overrides. Without a matrix there is one empty cell."""

    suffix: str
    overrides: tuple[str, ...]
    values: Mapping[str, str]

    def named(self, variant: str) -> str:
        """The name of a variant in this cell."""
        return shorten(f"{variant}__{self.suffix}") if self.suffix else variant


def cells(matrix: Mapping[str, list[Any]], path: Path) -> list[Cell]:
    """Every combination of a matrix's values; `ConfigError` where two would have one name."""
    lasts = [key.rpartition(".")[2] for key in matrix]
    labels = [key if lasts.count(last) > 1 else last for key, last in zip(matrix, lasts, strict=True)]
    combined: list[Cell] = []
    for values in itertools.product(*matrix.values()):
        texts = [_as_override(value) for value in values]
        parts = [f"{label}-{file_safe(text)}" for label, text in zip(labels, texts, strict=True)]
        overrides = tuple(f"{key}={text}" for key, text in zip(matrix, texts, strict=True))
        combined.append(Cell("__".join(parts), overrides, dict(zip(matrix, texts, strict=True))))
    check_distinct([cell.suffix for cell in combined], path)
    return combined


def _as_override(value: Any) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def check_distinct(names: list[str], path: Path) -> None:
    """Raise `ConfigError` for two names that would share one folder."""
    seen: dict[str, str] = {}
    for name in names:  # some file systems do not tell upper from lower case
        if name.casefold() in seen:
            other = seen[name.casefold()]
            raise ConfigError(f"'{name}' and '{other}' would share one folder", where=path, next_step="rename one")
        seen[name.casefold()] = name
