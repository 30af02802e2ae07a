"""A study and its variants: read from its file, multiplied by its matrix, composed and given digests.

A variant's configuration is composed from overrides, by Hydra, or from a command.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from steptrace.config.compose import Bases, add_place, check_allowed, compose, targets
from steptrace.config.defined import check_defined
from steptrace.config.digest import Cache, Code
from steptrace.config.groups import group_files
from steptrace.config.prepare import Prepared, prepared
from steptrace.config.programs import ProgramVariant, compose_program, filled
from steptrace.config.progress import PlanProgress
from steptrace.config.resolved import GPU_CONFIG
from steptrace.config.settings import Project, WorkflowSettings
from steptrace.config.study_file import (
    Entry,
    MatrixCell,
    StudyFile,
    cells,
    check_distinct,
    missing_packages,
    read_study,
    runs_at,
)
from steptrace.config.variant_kind import VariantKind, kind_of
from steptrace.config.yaml_file import line_of, read_limited
from steptrace.documents.run import Claim, PlannedStudy, PlannedVariant, SkippedVariant
from steptrace.errors import ConfigError

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

    @property
    def kind(self) -> VariantKind:
        """Whether it is the configuration of a training of ours, or of somebody's program."""
        return kind_of(self.config)

    def snapshot(self, *, study: str, variant: str) -> str:
        """Return the text of config.yaml: labels, then the configuration."""
        content = {"study": study, "variant": variant, "digest": self.digest, **self.config}
        return str(yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120))


@dataclass(frozen=True)
class Composer:
    """Composes variants of the studies of one plan; what Hydra has composed is kept in `cache`."""

    project: Project
    settings: WorkflowSettings
    cache: Cache
    _bases: Bases = field(default_factory=dict, repr=False)
    _checked: set[tuple[tuple[str, ...], ...]] = field(default_factory=set, repr=False)
    _progress: PlanProgress = field(default_factory=lambda: PlanProgress("configurations composed"), repr=False)

    @cached_property
    def code(self) -> Code:
        """Digests of code; the configuration of a command holds one."""
        return Code(self.cache)

    @cached_property
    def _yaml(self) -> bytes:
        """A digest of all that a composition reads: groups' files, environment variables, our code, Hydra's version."""
        code = self.code.digest(["steptrace.config.study"])
        parts: list[object] = [code, *map(version, ("hydra-core", "omegaconf"))]
        for path, folder in group_files(self.project.config_folders):
            text = read_limited(path)
            variables = [os.environb.get(name) for name in _VARIABLE.findall(text)]
            parts += [path.relative_to(folder), text, variables]
        return hashlib.sha256(repr(parts).encode()).digest()

    def _compose(self, changes: Sequence[str], where: str) -> Callable[[], dict[str, Any]]:
        """A function that composes, and reports progress if planning takes long."""

        def composed() -> dict[str, Any]:
            self._progress.look()
            return compose(self.project.config_folders, changes, where=where, bases=self._bases)

        return composed

    def variant(self, file: StudyFile, entry: Entry, cell: MatrixCell, scale: str, where: str) -> Composed:
        """One variant in one cell of the matrix."""
        shared = [*file.overrides, *file.scales.get(scale, [])]
        if isinstance(entry, ProgramVariant):
            assert file.program is not None
            program = filled(file.program, entry, shared, cell.values, where)
            workdir = self.project.workdir
            return Composed(config=compose_program(program, self.code, scale=scale, workdir=workdir, where=where))
        return self._training([*shared, *entry.overrides, *cell.overrides], scale, where)

    def reference(self, file: StudyFile, baseline: Entry, cell: MatrixCell, scale: str, where: str) -> Composed:
        """The configuration that variants are compared with.

        In a study of commands that is the baseline. In any other it is the float64 reference: the study's `reference`
        if it has one, otherwise the baseline without its number format. The defaults of config.yaml would not do, since
        a study with a model of its own also has a loss of its own.
        """
        if isinstance(baseline, ProgramVariant):
            return self.variant(file, baseline, cell, scale, where)
        shared = [*file.overrides, *file.scales.get(scale, [])]
        if file.reference is not None:
            overrides = [*shared, *cell.overrides, *file.reference]
        else:
            changes = [*shared, *baseline.overrides, *cell.overrides]
            overrides = [o for o in changes if not o.lstrip("+~").startswith("precision.")] + [_REFERENCE_PRECISION]
        return self._training(overrides, scale, where)

    def _training(self, overrides: Sequence[str], scale: str, where: str) -> Composed:
        changes = [f"scale={scale}", *overrides]
        key = self._yaml + "\n".join(changes).encode()
        config = self.cache.get(key, self._compose(changes, where))
        try:
            self._check_targets(config, where)
        except ConfigError as error:
            add_place(error, self.project.config_folders, changes)
            raise
        return Composed(config=config)

    def _check_targets(self, config: Mapping[str, Any], where: str) -> None:
        check_allowed(config, allow=self.settings.allow_targets, where=where)
        for folder in config["python_path"]:
            if not (self.project.workdir / folder).is_dir():
                expected = f"a folder in {self.project.workdir.absolute()}"
                what = f"python_path: there is no folder '{folder}'"
                raise ConfigError(what, where=where, expected=expected, keys=("python_path",))
        named = tuple(str(target) for _, target in targets(config)), tuple(config["python_path"])
        if named not in self._checked:
            roots = [self.project.workdir / folder for folder in config["python_path"]]
            check_defined(config, roots, self.cache, where=where)
            self._checked.add(named)


@dataclass(frozen=True, kw_only=True)
class Variant(Composed):
    """One variant: its overrides and the configuration that they resolve to.

    Attributes:
        name: its name, with the values of the matrix.
        overrides: its overrides or arguments.
        hypothesis: what its author expects; None if the study does not say it.
        baseline: the name of the variant that it is compared with; a baseline names itself.
        reference: the file of the float64 reference, beside study.json.
        needs: names of the study's preparations.
        entry: its name in the study's file.
        cell: the values of the matrix, by key.
        on_gpu: the same variant at the scale of a GPU, which a prediction follows.
    """

    name: str
    overrides: tuple[str, ...]
    hypothesis: str | None
    baseline: str
    reference: str
    needs: tuple[str, ...] = ()
    entry: str
    cell: Mapping[str, str]
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
    #: Variants of the file that do not run here.
    skipped: tuple[SkippedVariant, ...] = ()
    #: Counts that the source of the study states.
    claims: tuple[Claim, ...] = ()
    #: The preparations that its variants need, by name.
    preparations: dict[str, Prepared] = field(default_factory=dict, repr=False)

    @property
    def kind(self) -> VariantKind:
        """The kind of all its variants."""
        return self.variants[0].kind

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
                    entry=variant.entry,
                    cell=dict(variant.cell),
                )
                for variant in self.variants
            ),
            skipped=self.skipped,
            claims=self.claims,
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
    """An error about a variant, with the line of the study's file in which the variant begins."""
    if line is not None and (error.where or "").startswith(where):
        first, rest = error.what.partition("\n")[::2]
        error.what = "\n".join(filter(None, [f"{first} (the variant is in line {line})", rest]))
    return error


def _skipped(name: str, entry: Entry, scale: str) -> SkippedVariant | None:
    """Why a variant does not run here; None where it runs."""
    if not runs_at(entry, scale):
        return SkippedVariant(name=name, reason="other_scale", scales=tuple(entry.scales or ()))
    missing = missing_packages(entry)
    return SkippedVariant(name=name, reason="package_missing", packages=tuple(missing)) if missing else None


def _composed(
    composer: Composer, file: StudyFile, named: tuple[str, Entry], cell: MatrixCell, path: Path
) -> tuple[Composed, Composed]:
    """The configuration of a variant in one cell of the matrix, and the one that it has on a GPU.

    Raises:
        ConfigError: it is wrong; the error has the variant's line in the study's file.
    """
    variant, entry = named
    scale = composer.settings.scale
    where = f"{path}, variant '{cell.named(variant)}'"
    try:
        composed = composer.variant(file, entry, cell, scale, where)
        if composed.config["device"] == "cuda":
            return composed, composed
        return composed, composer.variant(file, entry, cell, _GPU_SCALE, f"{where} at scale {_GPU_SCALE}")
    except ConfigError as error:
        raise _with_line(error, where, line_of(path, ["variants", variant])) from error


def load_study(name: str, composer: Composer) -> Study:
    """Read, check and expand one study.

    Raises:
        ConfigError: a misspelt key, group, option or baseline, a value of a wrong type, or a forbidden target.
    """
    path = composer.project.study_files[name]
    scale = composer.settings.scale
    file, entries = read_study(path, composer.project, scale)
    expanded: list[Variant] = []
    skipped: list[SkippedVariant] = []
    references: dict[str, Composed] = {}
    for cell in cells(file.matrix):
        reference = f"reference__{cell.suffix}.yaml" if cell.suffix else "reference.yaml"
        for variant, entry in entries.items():
            composed, on_gpu = _composed(composer, file, (variant, entry), cell, path)
            left_out = _skipped(cell.named(variant), entry, scale)
            if left_out is not None:  # composed all the same, so that its mistakes are reported everywhere
                skipped.append(left_out)
                continue
            expanded.append(
                Variant(
                    name=cell.named(variant),
                    overrides=(*entry.in_words(), *cell.overrides),
                    hypothesis=entry.hypothesis,
                    baseline=cell.named(file.baseline),
                    reference=reference,
                    needs=tuple(entry.needs),
                    entry=variant,
                    cell=cell.values,
                    config=composed.config,
                    on_gpu=on_gpu,
                )
            )
        references[reference] = composer.reference(file, entries[file.baseline], cell, scale, f"{path}, reference")
    check_distinct([*(variant.name for variant in expanded), *(variant.name for variant in skipped)], path)
    needed = {need for variant in expanded for need in variant.needs}
    root = composer.project.root
    workdir = composer.project.workdir
    preparations = {
        need: prepared(need, preparation, root=root, workdir=workdir, where=str(path))
        for need, preparation in file.prepare.items()
        if need in needed
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
        skipped=tuple(skipped),
        claims=tuple(Claim(**msgspec.structs.asdict(claim)) for claim in file.claims),
        preparations=preparations,
    )
