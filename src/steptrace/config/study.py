"""A study and its variants: read from its file, multiplied by its matrix, composed and given digests.

A variant's configuration is composed from overrides, by Hydra, or from a command.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from typing import Any, Final

import msgspec
import yaml

from steptrace.config.compose import Bases, check_allowed, compose, targets
from steptrace.config.defined import check_defined
from steptrace.config.digest import Cache, Code
from steptrace.config.groups import group_files
from steptrace.config.prepare import Prepared, prepared
from steptrace.config.programs import ProgramVariant, compose_program, filled
from steptrace.config.progress import Progress
from steptrace.config.settings import Project, Settings
from steptrace.config.study_file import Cell, Entry, StudyFile, cells, check_distinct, read_study, runs_at
from steptrace.config.yaml_file import line_of, read_limited
from steptrace.documents.run import PlannedStudy, PlannedVariant
from steptrace.errors import ConfigError

#: Beside a variant's config.yaml: the same variant at the scale of a GPU.
GPU_CONFIG: Final = "config.gpu.yaml"
_GPU_SCALE: Final = "gpu"
#: An environment variable in an interpolation, `${oc.env:NAME}` or `${oc.env:NAME,default}`.
_VARIABLE: Final = re.compile(rb"\$\{\s*oc\.env:\s*(\w+)")
#: Added to the baseline's overrides to make a reference: it is computed in float64 in any case.
_REFERENCE_PRECISION: Final = "precision=fp32"
_Dumper: Final = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


@dataclass(frozen=True, kw_only=True)
class Composed:
    """One resolved configuration without labels, as plain data."""

    config: dict[str, Any] = field(repr=False)

    @cached_property
    def digest(self) -> str:
        """Its SHA-256: variants that differ in their labels only are the same training."""
        return hashlib.sha256(json.dumps(self.config, sort_keys=True).encode()).hexdigest()

    def snapshot(self, *, study: str, variant: str) -> str:
        """Return the text of config.yaml: labels, then the configuration."""
        content = {"study": study, "variant": variant, "digest": self.digest, **self.config}
        return str(yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120))


@dataclass(frozen=True)
class Composer:
    """Composes variants of the studies of one plan; what Hydra has composed is kept in `cache`."""

    project: Project
    settings: Settings
    cache: Cache
    _bases: Bases = field(default_factory=dict, repr=False)
    _checked: set[tuple[tuple[str, ...], ...]] = field(default_factory=set, repr=False)
    _progress: Progress = field(default_factory=lambda: Progress("configurations composed"), repr=False)

    @cached_property
    def code(self) -> Code:
        """Digests of code, of which a command's configuration has one."""
        return Code(self.cache)

    @cached_property
    def _yaml(self) -> bytes:
        """All that a composition reads: the groups' files, the variables they name, our code and Hydra's version."""
        own = self.code.digest(["steptrace.config.study"])
        parts: list[object] = [own, *map(version, ("hydra-core", "omegaconf"))]
        for path, folder in group_files(self.project.config_folders):
            text = read_limited(path)
            variables = [os.environb.get(name) for name in _VARIABLE.findall(text)]
            parts += [path.relative_to(folder), text, variables]
        return hashlib.sha256(repr(parts).encode()).digest()

    def _compose(self, changes: Sequence[str], where: str) -> Callable[[], dict[str, Any]]:
        """A function that composes, and says how far the plan is if that takes long."""

        def composed() -> dict[str, Any]:
            self._progress.look()
            return compose(self.project.config_folders, changes, where=where, bases=self._bases)

        return composed

    def variant(self, file: StudyFile, entry: Entry, cell: Cell, scale: str, where: str) -> Composed:
        """One variant in one cell of the matrix."""
        shared = [*file.overrides, *file.scales.get(scale, [])]
        if isinstance(entry, ProgramVariant):
            assert file.program is not None
            program, workdir = filled(file.program, entry, shared, cell.values, where), self.project.workdir
            return Composed(config=compose_program(program, self.code, scale=scale, workdir=workdir, where=where))
        return self._training([*shared, *entry.overrides, *cell.overrides], scale, where)

    def reference(self, file: StudyFile, baseline: Entry, cell: Cell, scale: str, where: str) -> Composed:
        """What variants are compared with: of commands the baseline, else the float64 reference.

        That is the study's, else the baseline's without its number format. The defaults of config.yaml cannot be it:
        a study with its own model also has its own loss.
        """
        if isinstance(baseline, ProgramVariant):
            return self.variant(file, baseline, cell, scale, where)
        shared = [*file.overrides, *file.scales.get(scale, [])]
        if file.reference is not None:
            overrides = [*shared, *cell.overrides, *file.reference]
        else:
            own = [*shared, *baseline.overrides, *cell.overrides]
            overrides = [o for o in own if not o.lstrip("+~").startswith("precision.")] + [_REFERENCE_PRECISION]
        return self._training(overrides, scale, where)

    def _training(self, overrides: Sequence[str], scale: str, where: str) -> Composed:
        changes = [f"scale={scale}", *overrides]
        made_of = self._yaml + "\n".join(changes).encode()
        config = self.cache.get(made_of, self._compose(changes, where))
        check_allowed(config, allow=self.settings.allow_targets, where=where)
        for folder in config["python_path"]:
            if not (self.project.workdir / folder).is_dir():
                expected = f"a folder in {self.project.workdir.absolute()}"
                raise ConfigError(f"python_path: there is no folder '{folder}'", where=where, expected=expected)
        named = tuple(str(target) for _, target in targets(config)), tuple(config["python_path"])
        if named not in self._checked:
            roots = [self.project.workdir / folder for folder in config["python_path"]]
            check_defined(config, roots, self.cache, where=where)
            self._checked.add(named)
        return Composed(config=config)


@dataclass(frozen=True, kw_only=True)
class Variant(Composed):
    """One variant: its overrides and the configuration that they resolve to.

    `baseline` names the variant it is compared with (itself for a baseline) and `reference` the file of the float64
    reference beside study.json. `needs` are names of the study's preparations. `on_gpu` is the same variant as a GPU
    would train it: what a prediction follows.
    """

    name: str
    overrides: tuple[str, ...]
    hypothesis: str | None
    baseline: str
    reference: str
    needs: tuple[str, ...] = ()
    on_gpu: Composed = field(repr=False)


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
    #: What its variants need and is made before, by name.
    preparations: dict[str, Prepared] = field(default_factory=dict, repr=False)

    @property
    def of_commands(self) -> bool:
        """Whether its variants are programs, and not our own trainings."""
        return "program" in self.variants[0].config

    def document(self) -> str:
        """Return the text of study.json."""
        plan = PlannedStudy(
            name=self.name,
            title=self.title,
            question=self.question,
            text=self.text,
            baseline=self.baseline,
            scale=self.scale,
            repeats=self.repeats,
            variants=tuple(
                PlannedVariant(
                    name=variant.name,
                    overrides=variant.overrides,
                    hypothesis=variant.hypothesis,
                    baseline=variant.baseline,
                    digest=variant.digest,
                    reference=variant.reference,
                )
                for variant in self.variants
            ),
        )
        return json.dumps(msgspec.to_builtins(plan), indent=2, ensure_ascii=False) + "\n"

    def files(self) -> dict[str, str]:
        """Return the study's snapshots: path relative to results/<study>/ -> text."""
        files = {"study.json": self.document()}
        for variant in self.variants:
            files[f"{variant.name}/config.yaml"] = variant.snapshot(study=self.name, variant=variant.name)
            files[f"{variant.name}/{GPU_CONFIG}"] = variant.on_gpu.snapshot(study=self.name, variant=variant.name)
        for name, reference in self.references.items():
            files[name] = reference.snapshot(study=self.name, variant="reference")
        return files


def _with_line(error: ConfigError, where: str, line: int | None) -> ConfigError:
    """An error about a variant, with the line of its file that the variant begins in."""
    if line is not None and (error.where or "").startswith(where):
        first, rest = error.what.partition("\n")[::2]
        error.what = "\n".join(filter(None, [f"{first} (the variant is in line {line})", rest]))
    return error


def load_study(name: str, composer: Composer) -> Study:
    """Read, check and expand one study.

    Raises:
        ConfigError: a misspelt key, group, option or baseline, a wrong type, a target that is not allowed.
    """
    path, scale = composer.project.study_files[name], composer.settings.scale
    file, entries = read_study(path, composer.project, scale)
    expanded: list[Variant] = []
    elsewhere: list[str] = []
    references: dict[str, Composed] = {}
    for cell in cells(file.matrix):
        reference = f"reference__{cell.suffix}.yaml" if cell.suffix else "reference.yaml"
        for variant, entry in entries.items():
            where = f"{path}, variant '{cell.named(variant)}'"
            try:
                composed = composer.variant(file, entry, cell, scale, where)
                on_gpu = composed
                if composed.config["device"] != "cuda":
                    on_gpu = composer.variant(file, entry, cell, _GPU_SCALE, f"{where} at scale {_GPU_SCALE}")
            except ConfigError as error:
                raise _with_line(error, where, line_of(path, ["variants", variant])) from error
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
                    needs=tuple(entry.needs),
                    config=composed.config,
                    on_gpu=on_gpu,
                )
            )
        references[reference] = composer.reference(file, entries[file.baseline], cell, scale, f"{path}, reference")
    check_distinct([*(variant.name for variant in expanded), *elsewhere], path)
    needed = {need for variant in expanded for need in variant.needs}
    root, workdir = composer.project.root, composer.project.workdir
    preparations = {
        each: prepared(each, preparation, root=root, workdir=workdir, where=str(path))
        for each, preparation in file.prepare.items()
        if each in needed
    }
    return Study(
        name=name,
        title=file.title,
        question=file.question,
        text=file.text.strip(),
        baseline=next(variant.baseline for variant in expanded),
        scale=scale,
        repeats=composer.settings.repeats,
        variants=tuple(expanded),
        references=references,
        elsewhere=tuple(elsewhere),
        preparations=preparations,
    )
