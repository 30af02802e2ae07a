"""A study and its variants: read from config/study/NAME.yaml, multiplied by its matrix, composed and given digests."""

import json
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from steptrace.config.cache import ComposeCache, Composed
from steptrace.config.documents import convert, read_yaml
from steptrace.config.matrix import Cell, cells, check_distinct
from steptrace.config.programs import Program, ProgramVariant, compose_program, words
from steptrace.config.settings import Project, Settings
from steptrace.config.targets import check_allowed
from steptrace.errors import ConfigError
from steptrace.files import versioned
from steptrace.names import near

#: Beside a variant's config.yaml: the same variant at the scale of a GPU.
GPU_CONFIG = "config.gpu.yaml"
_GPU_SCALE = "gpu"
#: Added to the baseline's overrides to make a reference: it is computed in float64 in any case.
_REFERENCE_PRECISION = "precision=fp32"
#: Names of variants, and keys of a matrix.
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_+-]*")
_KEY: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")

Text = Annotated[str, Meta(min_length=1)]
Overrides = list[Text]


class StudyFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The keys of config/study/NAME.yaml; variants and matrix are read entry by entry, so that messages name them."""

    title: Text
    baseline: str
    variants: Annotated[dict[str, Any], Meta(min_length=1)]
    question: str = ""
    text: str = ""
    overrides: Overrides = []
    scales: dict[str, Overrides] = {}
    reference: Overrides | None = None
    program: Program | None = None
    matrix: dict[str, Any] = {}

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


@dataclass(frozen=True)
class Variant:
    """One variant: its overrides and the configuration that they resolve to.

    `baseline` names the variant it is compared with (itself for a baseline) and `reference` the file of the float64
    reference beside study.json. `on_gpu` is the same variant as a GPU would train it: what a prediction follows.
    """

    name: str
    overrides: tuple[str, ...]
    hypothesis: str | None
    baseline: str
    reference: str
    composed: Composed = field(repr=False)
    on_gpu: Composed = field(repr=False)

    @property
    def digest(self) -> str:
        """SHA-256 of the resolved configuration without its labels."""
        return self.composed.digest

    @property
    def config(self) -> dict[str, Any]:
        """The resolved configuration, without the labels study, variant and digest."""
        return self.composed.config


@dataclass(frozen=True)
class Study:
    """One question: a baseline and its variants at one scale."""

    name: str
    title: str
    question: str
    text: str
    baseline: str
    scale: str
    repeats: int
    variants: tuple[Variant, ...]
    references: dict[str, Composed] = field(repr=False)
    #: Variants of the file that do not run at this scale.
    elsewhere: tuple[str, ...] = ()

    def variant(self, name: str) -> Variant:
        """Return the variant called `name`.

        Raises:
            ConfigError: there is none; the message suggests the nearest name.
        """
        variants = {variant.name: variant for variant in self.variants}
        if name not in variants:
            raise ConfigError(f"the study '{self.name}' has no variant '{name}'", next_step=near(name, variants))
        return variants[name]

    def narrowed(self, names: Collection[str]) -> "Study":
        """Return the study with the variants of these names, and the baselines they are compared with."""
        wanted = [v for v in self.variants if v.name in names or base_name(v.name) in names]
        baselines = {v.baseline for v in wanted} or {self.baseline}
        kept = tuple(v for v in self.variants if v in wanted or v.name in baselines)
        return replace(self, variants=kept)

    def files(self) -> dict[str, str]:
        """Return the study's snapshots: path relative to results/<study>/ -> text."""
        keys = ("name", "title", "question", "text", "baseline", "scale", "repeats")
        document: dict[str, Any] = {key: getattr(self, key) for key in keys}
        columns = ("name", "overrides", "hypothesis", "baseline", "reference", "digest")
        document["variants"] = [{key: getattr(variant, key) for key in columns} for variant in self.variants]
        files = {"study.json": json.dumps(versioned(document), indent=2, ensure_ascii=False) + "\n"}
        for variant in self.variants:
            files[f"{variant.name}/config.yaml"] = variant.composed.snapshot(study=self.name, variant=variant.name)
            files[f"{variant.name}/{GPU_CONFIG}"] = variant.on_gpu.snapshot(study=self.name, variant=variant.name)
        for name, reference in self.references.items():
            files[name] = reference.snapshot(study=self.name, variant="reference")
        return files


def load_study(name: str, project: Project, settings: Settings, cache: ComposeCache) -> Study:
    """Read, check and expand one study.

    Raises:
        ConfigError: a misspelt key, group, option or baseline, a wrong type, a target that is not allowed.
    """
    path = project.study_files[name]
    file, variants, matrix = _read(path, project)
    baseline, scale = file.baseline, settings.scale
    if baseline not in variants:
        raise ConfigError(f"the baseline '{baseline}' is not a variant", where=path, next_step=near(baseline, variants))
    if not _runs_at(variants[baseline], scale):
        what = f"the baseline '{baseline}' does not run at scale {scale}"
        raise ConfigError(what, where=path, next_step="remove its `scales`")
    compose = _Composer(file, path, project.workdir, cache, settings.allow_targets)
    expanded: list[Variant] = []
    elsewhere: set[str] = set()
    references: dict[str, Composed] = {}
    for cell in cells(matrix, path):
        reference = f"reference__{cell.suffix}.yaml" if cell.suffix else "reference.yaml"
        for variant, entry in variants.items():
            where = f"{path}, variant '{cell.named(variant)}'"
            if not _runs_at(entry, scale):
                elsewhere.add(cell.named(variant))
            composed = compose(entry, cell, scale, where)
            on_gpu = composed
            if composed.config["device"] != "cuda":
                on_gpu = compose(entry, cell, _GPU_SCALE, f"{where} at scale {_GPU_SCALE}")
            expanded.append(
                Variant(
                    name=cell.named(variant),
                    overrides=(*entry.in_words(), *cell.overrides),
                    hypothesis=entry.hypothesis,
                    baseline=cell.named(baseline),
                    reference=reference,
                    composed=composed,
                    on_gpu=on_gpu,
                )
            )
        references[reference] = compose.reference(variants[baseline], cell, scale)
    check_distinct([variant.name for variant in expanded], path)
    return Study(
        name=name,
        title=file.title,
        question=file.question,
        text=file.text.strip(),
        baseline=expanded[list(variants).index(baseline)].name,
        scale=scale,
        repeats=settings.repeats,
        # Variants for other scales are composed too, so that their mistakes are reported everywhere.
        variants=tuple(variant for variant in expanded if variant.name not in elsewhere),
        references=references,
        elsewhere=tuple(variant.name for variant in expanded if variant.name in elsewhere),
    )


def _read(path: Path, project: Project) -> tuple[StudyFile, dict[str, Entry], dict[str, list[Any]]]:
    """A study's file, its variants (also those that are a list of overrides or arguments alone), and its matrix."""
    file = convert(read_yaml(path), StudyFile, where=path)
    kind: type[Entry] = TrainingVariant if file.program is None else ProgramVariant
    own = "overrides" if file.program is None else "arguments"
    _check_names(file.variants, _NAME, f"{path}, variants", "letters, digits, _, + and -")
    _check_names(file.matrix, _KEY, f"{path}, matrix", "a group or a dotted key")
    variants: dict[str, Entry] = {}
    for name, entry in file.variants.items():
        content = {own: entry} if isinstance(entry, list) else entry
        variants[name] = convert(content, kind, where=path, key=f"variants.{name}")
        for scale in variants[name].scales or ():
            project.check_scale(scale, f"{path}, variants.{name}.scales")
    for scale in file.scales:
        project.check_scale(scale, f"{path}, scales")
    matrix: dict[str, list[Any]] = {}
    for key, values in file.matrix.items():
        kinds = Annotated[list[str | int | float | bool | None], Meta(min_length=1)]
        matrix[key] = convert(values, kinds, where=path, key=f"matrix.{key}")
    return file, variants, matrix


def _check_names(names: Collection[str], pattern: re.Pattern[str], where: str, expected: str) -> None:
    for name in names:
        if not pattern.fullmatch(name):
            raise ConfigError(f"'{name}' is not a valid name", where=where, expected=expected)


@dataclass(frozen=True)
class _Composer:
    """Composes the variants of a study: from overrides, by Hydra, or from a command."""

    file: StudyFile
    path: Path
    workdir: Path
    cache: ComposeCache
    allow: Sequence[str]

    def __call__(self, entry: Entry, cell: Cell, scale: str, where: str) -> Composed:
        shared = [*self.file.overrides, *self.file.scales.get(scale, [])]
        if isinstance(entry, ProgramVariant):
            assert self.file.program is not None
            program = msgspec.structs.replace(self.file.program, command=[*words(self.file.program.command), *shared])
            return compose_program(program, entry, cell.values, scale=scale, workdir=self.workdir, where=where)
        return self._compose([*shared, *entry.overrides, *cell.overrides], scale, where)

    def reference(self, baseline: Entry, cell: Cell, scale: str) -> Composed:
        """What variants are compared with: of commands the baseline, else the float64 reference.

        That is the study's, else the baseline's without its number format. The defaults of config.yaml cannot be it:
        a study with its own model also has its own loss.
        """
        if isinstance(baseline, ProgramVariant):
            return self(baseline, cell, scale, f"{self.path}, baseline")
        shared = [*self.file.overrides, *self.file.scales.get(scale, [])]
        if self.file.reference is not None:
            overrides = [*shared, *cell.overrides, *self.file.reference]
        else:
            own = [*shared, *baseline.overrides, *cell.overrides]
            overrides = [o for o in own if not o.lstrip("+~").startswith("precision.")] + [_REFERENCE_PRECISION]
        return self._compose(overrides, scale, f"{self.path}, reference")

    def _compose(self, overrides: Sequence[str], scale: str, where: str) -> Composed:
        composed = self.cache.compose([f"scale={scale}", *overrides], where=where)
        check_allowed(composed.config, allow=self.allow, where=where)
        return composed


def _runs_at(entry: Entry, scale: str) -> bool:
    """Whether a variant runs at a scale: at all of them, unless its `scales` name some."""
    return entry.scales is None or scale in entry.scales


def base_name(name: str) -> str:
    """Return a variant's name in the study's file, without the suffix of the matrix."""
    return name.split("__", maxsplit=1)[0]
