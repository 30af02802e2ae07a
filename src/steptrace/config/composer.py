"""Composes the configuration of each variant: from overrides, by Hydra, or from a command."""

import hashlib
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from typing import Any, Final

import msgspec
import yaml

from steptrace.config.cache import Cache
from steptrace.config.digest import Code, config_digest
from steptrace.config.matrix import Cell
from steptrace.config.programs import ProgramVariant, compose_program, filled
from steptrace.config.settings import Project
from steptrace.config.study_file import Entry, StudyFile
from steptrace.config.targets import check_allowed
from steptrace.errors import ConfigError

#: An environment variable in an interpolation, `${oc.env:NAME}` or `${oc.env:NAME,default}`.
_VARIABLE: Final = re.compile(rb"\$\{\s*oc\.env:\s*(\w+)")
#: Added to the baseline's overrides to make a reference: it is computed in float64 in any case.
_REFERENCE_PRECISION: Final = "precision=fp32"


class Composed(msgspec.Struct, frozen=True):
    """One resolved configuration without labels: its digest, as YAML text, and as plain data."""

    digest: str
    text: str
    config: dict[str, Any]

    @classmethod
    def of(cls, config: dict[str, Any]) -> "Composed":
        """The configuration with its digest and text."""
        text = yaml.safe_dump(config, sort_keys=False, allow_unicode=True, width=120)
        return cls(digest=config_digest(config), text=text, config=config)

    def snapshot(self, *, study: str, variant: str) -> str:
        """Return the text of config.yaml: labels, then the configuration."""
        # JSON's quoted text is YAML's too.
        return f"study: {json.dumps(study)}\nvariant: {json.dumps(variant)}\ndigest: {self.digest}\n{self.text}"


@dataclass(frozen=True)
class Composer:
    """Composes variants of the studies of one plan; what Hydra has composed is kept in `cache`."""

    project: Project
    allow: Sequence[str]
    cache: Cache

    @cached_property
    def code(self) -> Code:
        """Digests of code, of which a command's configuration has one."""
        return Code(self.cache)

    @cached_property
    def _yaml(self) -> bytes:
        """All that a composition reads: the groups' files, the variables they name, our code and Hydra's version."""
        modules = ["steptrace.config.compose", "steptrace.config.composer"]
        parts: list[object] = [self.code.digest(modules), *map(version, ("hydra-core", "omegaconf"))]
        for folder in self.project.config_folders:
            for path in sorted(folder.rglob("*.yaml")):
                if path.parent != folder / "study" and path != folder / "workflow.yaml":
                    text = path.read_bytes()
                    variables = [os.environb.get(name) for name in _VARIABLE.findall(text)]
                    parts += [path.relative_to(folder), text, variables]
        return hashlib.sha256(repr(parts).encode()).digest()

    def variant(self, file: StudyFile, entry: Entry, cell: Cell, scale: str, where: str) -> Composed:
        """One variant in one cell of the matrix."""
        shared = [*file.overrides, *file.scales.get(scale, [])]
        if isinstance(entry, ProgramVariant):
            assert file.program is not None
            program, workdir = filled(file.program, entry, shared, cell.values, where), self.project.workdir
            config = compose_program(program, self.code, scale=scale, workdir=workdir, where=where)
            return Composed.of(config)
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
        def composed() -> dict[str, Any]:
            from steptrace.config.compose import compose  # imports Hydra: 0.15 s that few calls need

            config = compose(self.project.config_folders, [f"scale={scale}", *overrides], where=where)
            return dict(msgspec.to_builtins(Composed.of(config)))

        made_of = self._yaml + "\n".join([scale, *overrides]).encode()
        result = msgspec.convert(self.cache.get(made_of, composed), Composed)
        check_allowed(result.config, allow=self.allow, where=where)
        for folder in result.config["python_path"]:
            if not (self.project.workdir / folder).is_dir():
                expected = f"a folder in {self.project.workdir.absolute()}"
                raise ConfigError(f"python_path: there is no folder '{folder}'", where=where, expected=expected)
        return result
