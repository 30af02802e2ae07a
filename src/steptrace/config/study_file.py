"""The file of a study, config/study/NAME.yaml, as it was written."""

from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from steptrace.config.documents import convert, read_yaml
from steptrace.config.programs import Program, ProgramVariant
from steptrace.config.settings import Project
from steptrace.errors import ConfigError
from steptrace.names import near

Text = Annotated[str, Meta(min_length=1)]
Overrides = list[Text]
_Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_+-]*\Z")]
_Key = Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_.]*\Z")]


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
    program: Program | None = None
    matrix: dict[_Key, Annotated[list[str | int | float | bool | None], Meta(min_length=1)]] = {}

    def __post_init__(self) -> None:
        if self.program is not None and self.reference is not None:
            raise ValueError("a study of commands has no reference: its baseline is what the others are compared with")


class TrainingVariant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One variant of a study of our own trainings."""

    overrides: Overrides
    hypothesis: str | None = None
    scales: Annotated[list[Text], Meta(min_length=1)] | None = None

    def in_words(self) -> tuple[str, ...]:
        """What it changes, as pages name it."""
        return tuple(self.overrides)


Entry = TrainingVariant | ProgramVariant


def read_study(path: Path, project: Project, scale: str) -> tuple[StudyFile, dict[str, Entry]]:
    """Read a study's file, and its variants (also those that are a list of overrides or arguments alone).

    Raises:
        ConfigError: a misspelt key, scale or baseline, a wrong type, a baseline that does not run at `scale`.
    """
    file = convert(read_yaml(path), StudyFile, where=path)
    entries: dict[str, Entry] = {}
    for name, content in file.variants.items():
        where = f"{path}, variants.{name}"
        kind: type[Entry] = TrainingVariant if file.program is None else ProgramVariant
        changes = "overrides" if file.program is None else "arguments"
        if not isinstance(content, list | dict):
            expected = f"a list of {changes}, [] for none, or a mapping with the key `{changes}`"
            raise ConfigError("is neither a list nor a mapping", where=where, expected=expected)
        written = {changes: content} if isinstance(content, list) else content
        entries[name] = convert(written, kind, where=where)
        for each in entries[name].scales or ():
            project.check_scale(each, where)
    for each in file.scales:
        project.check_scale(each, f"{path}, scales")
    if file.baseline not in entries:
        what = f"the baseline '{file.baseline}' is not a variant"
        raise ConfigError(what, where=path, next_step=near(file.baseline, entries))
    if not runs_at(entries[file.baseline], scale):
        what = f"the baseline '{file.baseline}' does not run at scale {scale}"
        raise ConfigError(
            what, where=path, next_step=f"add {scale} to that variant's `scales`, or choose another baseline"
        )
    return file, entries


def runs_at(entry: Entry, scale: str) -> bool:
    """Whether a variant runs at a scale: at all of them, unless its `scales` name some."""
    return entry.scales is None or scale in entry.scales
