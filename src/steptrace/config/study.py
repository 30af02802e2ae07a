"""A study and its variants: read from config/study/NAME.yaml, multiplied by its matrix, composed and given digests."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from steptrace.config.cache import ComposeCache, Composed
from steptrace.config.documents import check, read_yaml
from steptrace.config.matrix import Cell, cells, check_distinct
from steptrace.config.programs import compose_program, in_words
from steptrace.config.settings import Project, Settings
from steptrace.errors import ConfigError
from steptrace.files import versioned
from steptrace.names import near

#: Beside a variant's config.yaml: the same variant at the scale of a GPU.
GPU_CONFIG = "config.gpu.yaml"
_GPU_SCALE = "gpu"
#: Added to the baseline's overrides to make a reference: it is computed in float64 in any case.
_REFERENCE_PRECISION = "precision=fp32"


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
        told = ("name", "overrides", "hypothesis", "baseline", "digest")
        document["variants"] = [{key: getattr(variant, key) for key in told} for variant in self.variants]
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
    document = _read(path, project)
    baseline, variants = document["baseline"], document["variants"]
    if baseline not in variants:
        raise ConfigError(f"the baseline '{baseline}' is not a variant", where=path, next_step=near(baseline, variants))
    scale = settings.scale
    if not _runs_at(variants[baseline], scale):
        what = f"the baseline '{baseline}' does not run at scale {scale}"
        raise ConfigError(what, where=path, next_step="remove its `scales`")
    expanded: list[Variant] = []
    elsewhere: set[str] = set()
    references: dict[str, Composed] = {}
    compose = _composer(document, path, project, cache)
    for cell in cells(document.get("matrix", {}), path):
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
                    overrides=compose.overrides(entry, cell),
                    hypothesis=entry.get("hypothesis"),
                    baseline=cell.named(baseline),
                    reference=reference,
                    composed=composed,
                    on_gpu=on_gpu,
                )
            )
        references[reference] = compose.reference(cell, scale)
    check_distinct([variant.name for variant in expanded], path)
    return Study(
        name=name,
        title=document["title"],
        question=document.get("question", ""),
        text=document.get("text", "").strip(),
        baseline=expanded[list(variants).index(baseline)].name,
        scale=scale,
        repeats=settings.repeats,
        # Variants for other scales are composed too, so that their mistakes are reported everywhere.
        variants=tuple(variant for variant in expanded if variant.name not in elsewhere),
        references=references,
        elsewhere=tuple(variant.name for variant in expanded if variant.name in elsewhere),
    )


def _read(path: Path, project: Project) -> dict[str, Any]:
    """A study's file, with every variant as a mapping, also one that is a list of its overrides or arguments alone."""
    document = read_yaml(path)
    check(document, project.schema("study"), where=path)
    own = "arguments" if "program" in document else "overrides"
    variants = {name: {own: e} if isinstance(e, list) else e for name, e in document["variants"].items()}
    for scale in document.get("scales", {}):
        project.check_scale(scale, f"{path}, scales")
    for name, entry in variants.items():
        for scale in entry.get("scales", []):
            project.check_scale(scale, f"{path}, variants.{name}.scales")
    return document | {"variants": variants}


@dataclass(frozen=True)
class Outline:
    """What is known of a study without resolving each of its variants: their names, and the baseline's settings."""

    title: str
    variants: tuple[str, ...]
    baseline: Composed


def outline(name: str, project: Project, scale: str, cache: ComposeCache) -> Outline:
    """Read a study and resolve its baseline alone; errors as in `load_study`, of what is looked at."""
    path = project.study_files[name]
    document = _read(path, project)
    combinations = cells(document.get("matrix", {}), path)
    variants = document["variants"]
    names = [cell.named(v) for cell in combinations for v, entry in variants.items() if _runs_at(entry, scale)]
    compose = _composer(document, path, project, cache)
    baseline = compose(
        variants.get(document["baseline"], {"overrides": []}), combinations[0], scale, f"{path}, baseline"
    )
    return Outline(document["title"], tuple(names), baseline)


def _composer(document: Mapping[str, Any], path: Path, project: Project, cache: ComposeCache) -> "_Configs | _Programs":
    ours = "program" not in document
    return _Configs(document, path, cache) if ours else _Programs(document, path, project.workdir)


class _Configs:
    """Composes the variants of a study of our own trainings: from overrides, by Hydra."""

    def __init__(self, document: Mapping[str, Any], path: Path, cache: ComposeCache) -> None:
        self._document, self._path, self._cache = document, path, cache

    def __call__(self, entry: Mapping[str, Any], cell: Cell, scale: str, where: str) -> Composed:
        return self._compose(self.overrides(entry, cell), cell, scale, where)

    def overrides(self, entry: Mapping[str, Any], cell: Cell) -> tuple[str, ...]:
        """What of a variant is its own."""
        return (*entry["overrides"], *cell.overrides)

    def reference(self, cell: Cell, scale: str) -> Composed:
        """The configuration of the float64 reference: the study's, else the baseline's without its number format.

        The defaults of config.yaml cannot be the reference: a study with its own model also has its own loss.
        """
        where = f"{self._path}, reference"
        if "reference" in self._document:
            return self._compose((*cell.overrides, *self._document["reference"]), cell, scale, where)
        own = self.overrides(self._document["variants"][self._document["baseline"]], cell)
        return self._compose((*own, _REFERENCE_PRECISION), cell, scale, where, without="precision.")

    def _compose(
        self, own: Sequence[str], cell: Cell, scale: str, where: str, *, without: str | None = None
    ) -> Composed:
        """Compose what all variants share at a scale, and `own`; `without` overrides that begin with this."""
        shared = {
            "overrides": self._document.get("overrides", []),
            f"scales.{scale}": self._document.get("scales", {}).get(scale, []),
        }
        overrides = [f"scale={scale}", *chain.from_iterable(shared.values()), *own]
        if without is not None:
            overrides = [override for override in overrides if not override.lstrip("+~").startswith(without)]
        # For error messages, the key of the file that holds each override which variants share.
        parts = {**shared, "matrix": cell.overrides}
        places = {override: f"{self._path}, {part}" for part, found in parts.items() for override in found}
        return self._cache.compose(overrides, where=where, places=places)


class _Programs:
    """Composes the variants of a study of commands."""

    def __init__(self, document: Mapping[str, Any], path: Path, workdir: Path) -> None:
        self._document, self._path, self._workdir = document, path, workdir

    def __call__(self, entry: Mapping[str, Any], cell: Cell, scale: str, where: str) -> Composed:
        return compose_program(self._document, entry, cell.values, scale, workdir=self._workdir, where=where)

    def overrides(self, entry: Mapping[str, Any], cell: Cell) -> tuple[str, ...]:
        """What of a variant is its own."""
        return (*in_words(entry), *cell.overrides)

    def reference(self, cell: Cell, scale: str) -> Composed:
        """What a program is compared with: the baseline."""
        return self(self._document["variants"][self._document["baseline"]], cell, scale, f"{self._path}, baseline")


def _runs_at(entry: Mapping[str, Any], scale: str) -> bool:
    """Whether a variant runs at a scale: at all of them, unless its `scales` name some."""
    return scale in entry.get("scales", [scale])


def base_name(name: str) -> str:
    """Return a variant's name in the study's file, without the suffix of the matrix."""
    return name.split("__", maxsplit=1)[0]
