"""The plan of a whole workflow: every study expanded, every snapshot written, every digest that a rule depends on.

The Snakefile asks this module alone. So the tests can say without Snakemake which edit makes which rule run again.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from steptrace.config.compose import targets
from steptrace.config.digest import Cache, Code, versions
from steptrace.config.prepare import Prepared, together
from steptrace.config.settings import Project, WorkflowSettings, read_settings
from steptrace.config.study import Composed, Composer, Study, Variant, load_study
from steptrace.errors import ConfigError, SteptraceError, near
from steptrace.files import user_folder, write_text

RESULTS: Final = Path("results")
_CACHE: Final = RESULTS / ".cache" / "plan.cache"
#: Characters of a digest that a rule keeps: enough to differ, short enough to read in Snakemake's reasons.
_SHORT = 16


@dataclass(frozen=True)
class Plan:
    """All studies of one workflow, ready for the rules; `preparations`, by name, are made before their variants."""

    project: Project
    settings: WorkflowSettings
    studies: dict[str, Study]
    preparations: dict[str, Prepared]
    cache: Cache = field(repr=False)
    _code: Code = field(repr=False)
    _keys: dict[tuple[str, ...], str] = field(default_factory=dict, repr=False)

    @cached_property
    def variants(self) -> dict[tuple[str, str], Variant]:
        """Every variant by the names of its study and its own, in the order they run."""
        return {(study.name, variant.name): variant for study in self.studies.values() for variant in study.variants}

    def key(self, what: str, study: str, variant: str) -> str:
        """The digests that a variant's training, equivalence or prediction depends on: configuration, code, versions.

        Args:
            what: `training`, or the name of a check.
            study: the study's name.
            variant: the variant's name.
        """
        chosen = self.variants[study, variant]
        composed: list[Composed] = [chosen.on_gpu if what == "prediction" else chosen]
        if what == "equivalence":
            composed.append(self.studies[study].references[chosen.reference])
        needs = [f"{need}={self.preparations[need].key}" for need in chosen.needs]
        modules = [*chosen.kind.code[what]]
        parts = (*modules, *(part.digest for part in composed))
        if parts not in self._keys:  # Snakemake asks for each of them, and several times
            digests = "+".join(part.digest[:_SHORT] for part in composed)
            self._keys[parts] = f"{digests} {self._code_of(modules, composed)}"
        gpus = self.settings.estimate_gpus if what == "prediction" else ()
        named_gpu = [f"gpu={gpus[0]}"] if gpus else []
        return " ".join([self._keys[parts], *named_gpu, *needs])

    def code(self, *modules: str, script: str = "") -> str:
        """The digest of the code that a rule runs: modules of steptrace, a script, and their imports."""
        key = (*modules, script)
        if key not in self._keys:
            scripts = [self.project.root / "workflow" / "scripts" / f"{script}.py"] if script else []
            self._keys[key] = self._code.digest(modules, scripts=scripts)[:_SHORT]
        return self._keys[key]

    def write_snapshots(self) -> None:
        """Write the study.json, configurations and references of each study whose content has changed."""
        for study in self.studies.values():
            for name, text in study.files().items():
                path = self.project.workdir / RESULTS / study.name / name
                if not path.is_file() or path.read_bytes() != text.encode():
                    write_text(path, text)
        self.cache.save_used(self.project.workdir / _CACHE)  # jobs on other machines plan again

    def _code_of(self, modules: list[str], composed: list[Composed]) -> str:
        """The digest of the code that configurations run, and the versions of the other packages that it imports."""
        names = sorted({str(target) for part in composed for _, target in targets(part.config)})
        folders = sorted({folder for part in composed for folder in part.config.get("python_path", [])})
        key = (*modules, *names, *folders)
        if key not in self._keys:
            paths = [(self.project.workdir / folder).resolve() for folder in folders]
            without = [(self.project.workdir / name).resolve() for name in ("results", "reports")]
            code = self._code.digest([*modules, *names], roots=paths, without=without, installed=True)[:_SHORT]
            self._keys[key] = " ".join([code, *map("==".join, versions([*names, "torch"]).items())])
        return self._keys[key]


def make_plan(root: Path, workdir: Path, overrides: Mapping[str, Any] | None = None) -> Plan:
    """Read the settings and studies, and compose what is not in the cache; `Plan.write_snapshots` writes them.

    Args:
        root: the folder that holds the Snakefile.
        workdir: the folder that receives results/ and reports/, and may hold a config/ of its own.
        overrides: keys of workflow.yaml given on the command line.

    Raises:
        ConfigError: anything wrong in the configuration.
    """
    project = Project(root=root, workdir=workdir)
    settings = read_settings(project, overrides or {})
    cache = plan_cache(workdir)
    composer = Composer(project, settings, cache)
    studies = {name: load_study(name, composer) for name in settings.studies}
    names = {
        study.name: [*(v.name for v in study.variants), *(v.name for v in study.skipped)] for study in studies.values()
    }
    _check_gates(settings, project, names)
    preparations = together(
        (study.name, preparation) for study in studies.values() for preparation in study.preparations.values()
    )
    cache.save()
    return Plan(project, settings, studies, preparations, cache, composer.code)


def plan_cache(workdir: Path) -> Cache:
    """The cache of what earlier calls have composed and parsed.

    It lies in the user's folder, since planning writes nothing in `workdir`.
    """
    kept = None
    with suppress(SteptraceError, OSError):  # the user has no private folder: every call plans anew
        kept = user_folder() / "plan.cache"
    return Cache(kept, workdir / _CACHE)


def _check_gates(settings: WorkflowSettings, project: Project, names: Mapping[str, list[str]]) -> None:
    """Raise `ConfigError` for gates on unknown studies, variants or figures; a study need not be selected now."""
    if not settings.gates:
        return
    from steptrace.documents.paths import EVERY_VARIANT, check_key, is_cell_of  # a quarter of a call without gates

    where = f"{project.workflow_file}, gates"
    for study, variants in settings.gates.items():
        if study not in project.study_files:
            raise ConfigError(f"there is no study '{study}'", where=where, next_step=near(study, project.study_files))
        for variant in variants:
            exists = study not in names or variant in (EVERY_VARIANT, *names[study])
            if not exists and not any(is_cell_of(name, variant) for name in names[study]):
                hint = near(variant, names[study])
                raise ConfigError(f"the study '{study}' has no variant '{variant}'", where=where, next_step=hint)
        for variant, keys in variants.items():
            for key, limits in keys.items():
                try:
                    check_key(key)
                except ConfigError as error:
                    error.where = f"{where}.{study}.{variant}"
                    raise
                if "scale" in limits:
                    project.check_scale(limits["scale"], f"{where}.{study}.{variant}.{key}")
