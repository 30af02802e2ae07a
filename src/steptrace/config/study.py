"""A study and its variants: read from its file, multiplied by its matrix, composed and given digests."""

import json
from dataclasses import dataclass, field
from typing import Any

from steptrace.config.composer import Composed, Composer
from steptrace.config.matrix import cells, check_distinct
from steptrace.config.settings import Project, Settings
from steptrace.config.study_file import read_study, runs_at
from steptrace.files import versioned

#: Beside a variant's config.yaml: the same variant at the scale of a GPU.
GPU_CONFIG = "config.gpu.yaml"
_GPU_SCALE = "gpu"


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


def load_study(name: str, project: Project, settings: Settings, composer: Composer) -> Study:
    """Read, check and expand one study.

    Raises:
        ConfigError: a misspelt key, group, option or baseline, a wrong type, a target that is not allowed.
    """
    path, scale = project.study_files[name], settings.scale
    file, entries = read_study(path, project, scale)
    expanded: list[Variant] = []
    elsewhere: list[str] = []
    references: dict[str, Composed] = {}
    for cell in cells(file.matrix, path):
        reference = f"reference__{cell.suffix}.yaml" if cell.suffix else "reference.yaml"
        for variant, entry in entries.items():
            where = f"{path}, variant '{cell.named(variant)}'"
            composed = composer.variant(file, entry, cell, scale, where)
            on_gpu = composed
            if composed.config["device"] != "cuda":
                on_gpu = composer.variant(file, entry, cell, _GPU_SCALE, f"{where} at scale {_GPU_SCALE}")
            if not runs_at(entry, scale):  # composed all the same, so that its mistakes are reported everywhere
                elsewhere.append(cell.named(variant))
                continue
            expanded.append(
                Variant(
                    name=cell.named(variant),
                    overrides=(*entry.in_words(), *cell.overrides),
                    hypothesis=entry.hypothesis,
                    baseline=cell.named(file.baseline),
                    reference=reference,
                    composed=composed,
                    on_gpu=on_gpu,
                )
            )
        references[reference] = composer.reference(file, entries[file.baseline], cell, scale, f"{path}, reference")
    check_distinct([*(variant.name for variant in expanded), *elsewhere], path)
    return Study(
        name=name,
        title=file.title,
        question=file.question,
        text=file.text.strip(),
        baseline=next(variant.baseline for variant in expanded),
        scale=scale,
        repeats=settings.repeats,
        variants=tuple(expanded),
        references=references,
        elsewhere=tuple(elsewhere),
    )
