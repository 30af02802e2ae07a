"""Reads the file of a study, config/study/NAME.yaml: its variants, and the matrix that multiplies them.

A cell is one combination of the matrix's values.
"""

import importlib.util
import itertools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from steptrace.config.convert import convert
from steptrace.config.prepare import Preparation
from steptrace.config.programs import ProgramVariant, StudyProgram
from steptrace.config.schema import Text
from steptrace.config.settings import MOST_NAME, NAME_FORM, Project
from steptrace.config.yaml_file import line_of, read_yaml
from steptrace.errors import ConfigError, near
from steptrace.format import enumeration

#: Characters that a value of the matrix may hold, but the name of a file should not.
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_.+-]+")

Overrides = list[Text]
_Name = Annotated[str, Meta(pattern=rf"^[A-Za-z0-9][A-Za-z0-9_+-]{{0,{MOST_NAME - 1}}}\Z", title=NAME_FORM)]
_Key = Annotated[
    str,
    Meta(
        pattern=rf"^[A-Za-z_][A-Za-z0-9_.]{{0,{MOST_NAME - 1}}}\Z",
        title="letters, digits, _ and ., beginning with a letter, such as data.batch_size",
    ),
]
#: The name of a Python module that can be imported from anywhere.
_Module = Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]*\Z", title="a Python package as it is imported")]
#: Variants that a study's matrix may make; each is planned, and trained several times.
MOST_VARIANTS: Final = 10_000


class StatedCount(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A number of kernels that a source states: the page shows our count beside it."""

    says: Text
    source: Text
    variant: Text
    label: Text
    kernels: Annotated[float, Meta(gt=0)]


class StudyFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The keys of config/study/NAME.yaml; variants are read one by one, so that messages name them."""

    title: Text
    baseline: str
    variants: Annotated[dict[_Name, Any], Meta(min_length=1)]
    question: str = ""
    text: str = ""
    overrides: Overrides = []
    scales: dict[str, Overrides] = {}
    reference: Overrides | None = None
    program: StudyProgram | None = None
    prepare: dict[_Name, Preparation] = {}
    claims: list[StatedCount] = []
    matrix: dict[_Key, Annotated[list[str | int | float | bool | None], Meta(min_length=1)]] = {}

    def __post_init__(self) -> None:
        if self.program is not None and self.reference is not None:
            raise ValueError("a study of commands has no reference: its variants are compared with its baseline")


class TrainingVariant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One variant of a study of our own trainings."""

    overrides: Overrides
    hypothesis: str | None = None
    scales: Annotated[list[Text], Meta(min_length=1)] | None = None
    needs: list[Text] = []
    requires: list[_Module] = []

    def in_words(self) -> tuple[str, ...]:
        """Its changes of the baseline, as pages name them."""
        return tuple(self.overrides)


Entry = TrainingVariant | ProgramVariant


def read_study(path: Path, project: Project, scale: str) -> tuple[StudyFile, dict[str, Entry]]:
    """Read a study's file and its variants; a variant may be a mapping, or only a list of overrides or arguments.

    Raises:
        ConfigError: a misspelt key, scale or baseline, a wrong type, a baseline that does not run at `scale`.
    """
    file = convert(read_yaml(path), StudyFile, where=path, file=path)
    _check_size(file, path)
    entries: dict[str, Entry] = {}
    for name, content in file.variants.items():
        at = ("variants", name)
        line = line_of(path, at)
        where = f"{path}, line {line}, variants.{name}"
        kind: type[Entry] = TrainingVariant if file.program is None else ProgramVariant
        changes = "overrides" if file.program is None else "arguments"
        if not isinstance(content, list | dict):
            expected = f"a list of {changes}, [] for none, or a mapping with the key `{changes}`"
            raise ConfigError("is neither a list nor a mapping", where=where, expected=expected)
        written = {changes: content} if isinstance(content, list) else content
        entries[name] = convert(written, kind, where=where)
        for variant_scale in entries[name].scales or ():
            project.check_scale(variant_scale, where)
        for need in entries[name].needs:
            if need not in file.prepare:
                what = f"needs '{need}', which the study does not prepare"
                raise ConfigError(what, where=where, next_step=near(need, file.prepare))
    for named_scale in file.scales:
        project.check_scale(named_scale, f"{path}, scales")
    for number, claim in enumerate(file.claims):
        if claim.variant not in entries:
            what = f"claims: '{claim.variant}' is not a variant"
            where = f"{path}, line {line_of(path, ('claims', number))}"
            raise ConfigError(what, where=where, next_step=near(claim.variant, entries))
    if file.baseline not in entries:
        what = f"the baseline '{file.baseline}' is not a variant"
        raise ConfigError(what, where=path, next_step=near(file.baseline, entries))
    if missing := missing_packages(entries[file.baseline]):
        what = f"the baseline '{file.baseline}' needs {enumeration(missing)}, which cannot be imported here"
        raise ConfigError(what, where=path, next_step="install it, or choose another baseline")
    if not runs_at(entries[file.baseline], scale):
        what = f"the baseline '{file.baseline}' does not run at scale {scale}"
        raise ConfigError(
            what, where=path, next_step=f"add {scale} to that variant's `scales`, or choose another baseline"
        )
    return file, entries


def _check_size(file: StudyFile, path: Path) -> None:
    """Raise `ConfigError` for a matrix that would make more than `MOST_VARIANTS` variants, before they are made."""
    count = math.prod(len(values) for values in file.matrix.values()) * len(file.variants)
    if count > MOST_VARIANTS:
        line = line_of(path, ["matrix" if file.matrix else "variants"])
        raise ConfigError(
            f"makes {count} variants",
            where=f"{path}, line {line}",
            expected=f"at most {MOST_VARIANTS}: variants times the number of values of each key of `matrix`",
            next_step="remove values, or divide the study",
        )


def runs_at(entry: Entry, scale: str) -> bool:
    """Whether a variant runs at a scale: at all of them, unless its `scales` name some."""
    return entry.scales is None or scale in entry.scales


def missing_packages(entry: Entry) -> list[str]:
    """The packages that a variant requires and that cannot be imported here: it is skipped without them."""
    requires = entry.requires if isinstance(entry, TrainingVariant) else []
    return [name for name in requires if importlib.util.find_spec(name) is None]


@dataclass(frozen=True)
class MatrixCell:
    """One combination of the matrix's values. Without a matrix there is one cell, which is empty.

    Attributes:
        suffix: the end of the names of its variants.
        overrides: the values as overrides.
        values: the values, by key.
    """

    suffix: str
    overrides: tuple[str, ...]
    values: Mapping[str, str]

    def named(self, variant: str) -> str:
        """The name of a variant in this cell."""
        return f"{variant}__{self.suffix}" if self.suffix else variant


def cells(matrix: Mapping[str, list[Any]]) -> list[MatrixCell]:
    """Every combination of a matrix's values."""
    lasts = [key.rpartition(".")[2] for key in matrix]
    labels = [key if lasts.count(last) > 1 else last for key, last in zip(matrix, lasts, strict=True)]
    combined: list[MatrixCell] = []
    for values in itertools.product(*matrix.values()):
        texts = [_as_override(value) for value in values]
        safe = [_UNSAFE.sub("_", text).strip("_.") or "_" for text in texts]
        parts = [f"{label}-{text}" for label, text in zip(labels, safe, strict=True)]
        overrides = tuple(f"{key}={text}" for key, text in zip(matrix, texts, strict=True))
        combined.append(MatrixCell("__".join(parts), overrides, dict(zip(matrix, texts, strict=True))))
    return combined


def _as_override(value: Any) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def check_distinct(names: list[str], path: Path) -> None:
    """Raise `ConfigError` for two names that would share one folder."""
    seen: dict[str, str] = {}
    for name in names:
        if len(name) > MOST_NAME:
            raise ConfigError(
                f"the name of a variant has {len(name)} characters: {name[:60]}...",
                where=path,
                expected=f"at most {MOST_NAME}, with the values of the matrix",
                next_step="shorten the variant's name, or values of the matrix",
            )
    for name in names:  # some file systems do not tell upper from lower case
        if name.casefold() in seen:
            other = seen[name.casefold()]
            raise ConfigError(f"'{name}' and '{other}' would share one folder", where=path, next_step="rename one")
        seen[name.casefold()] = name
