"""config/workflow.yaml: which studies run, repeats, scale, imported traces and gates."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from steptrace.config.documents import convert, read_yaml
from steptrace.config.gpus import resolve_scale
from steptrace.errors import ConfigError
from steptrace.estimate import gpu_named
from steptrace.names import file_safe, near

#: Reserved names: other folders of results/, and the page that lists the studies.
RESERVED = ("traces", "extension", "index")
#: Valid study names; they become folders, pages and arguments of commands.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_+-]*")

Text = Annotated[str, Meta(min_length=1)]


class NamedTrace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An entry of `traces` with a name of its own."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]*\Z")]
    path: Text


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a gate holds a figure to."""

    at_least: float | None = None
    at_most: float | None = None
    equals: str | float | bool | None = None
    at_most_ratio: Annotated[float, Meta(gt=0)] | None = None
    baseline: Text | None = None
    allow: list[Text] = []
    scale: str | None = None

    def __post_init__(self) -> None:
        if (self.at_most_ratio is None) != (self.baseline is None):
            raise ValueError("at_most_ratio and baseline belong together")
        if all(limit is None for limit in (self.at_least, self.at_most, self.equals, self.at_most_ratio)):
            raise ValueError("a gate has no limit: give at_least, at_most, equals or at_most_ratio")


class Workflow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The keys of workflow.yaml."""

    studies: list[str]
    variants: Annotated[list[str], Meta(min_length=1)] | None = None
    repeats: Annotated[int, Meta(ge=1, le=10_000)] = 3
    scale: Text = "auto"
    timeout_minutes: Annotated[float, Meta(gt=0, le=525_600)] | None = None
    allow_targets: list[Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_.]*\Z")]] = []
    traces: list[str | NamedTrace] = []
    estimate_gpus: list[str] = []
    gates: dict[str, dict[str, dict[str, Any]]] = {}


@dataclass(frozen=True)
class Project:
    """Where things are: `root` holds the workflow, `workdir` receives the results and may bring its own config/."""

    root: Path
    workdir: Path

    @property
    def config_folders(self) -> list[Path]:
        """The configuration folders; the first has config.yaml and goes before the second."""
        own, shared = self.workdir / "config", self.root / "config"
        if own.resolve() == shared.resolve() or not own.is_dir():
            return [shared]
        return [own, shared] if (own / "config.yaml").is_file() else [shared, own]

    @property
    def study_files(self) -> dict[str, Path]:
        """The file of every study by name; one in the working directory replaces one of the same name."""
        folders = [self.root / "config" / "study", self.workdir / "config" / "study"]
        return {path.stem: path for folder in folders for path in sorted(folder.glob("*.yaml"))}

    def check_scale(self, scale: str, where: str | Path) -> None:
        """Refuse a scale that no file in a folder `scale/` describes.

        Raises:
            ConfigError: there is no such scale.
        """
        scales = {path.stem for folder in self.config_folders for path in (folder / "scale").glob("*.yaml")}
        if scale not in scales:
            raise ConfigError(f"there is no scale '{scale}'", where=where, next_step=near(scale, scales))

    @property
    def workflow_file(self) -> Path:
        """The workflow.yaml in force: the working directory's, or the one that came with the workflow."""
        own = self.workdir / "config" / "workflow.yaml"
        return own if own.is_file() else self.root / "config" / "workflow.yaml"


@dataclass(frozen=True)
class Settings:
    """The checked content of workflow.yaml; `scale` is resolved, never `auto`.

    `traces` were recorded elsewhere, and are analysed into results/traces/<name>/: name -> file or folder.
    """

    studies: tuple[str, ...]
    variants: tuple[str, ...] | None
    repeats: int
    scale: str
    timeout_minutes: float | None
    allow_targets: tuple[str, ...]
    traces: dict[str, str]
    estimate_gpus: tuple[str, ...]
    gates: dict[str, dict[str, dict[str, dict[str, Any]]]]


def read_settings(project: Project, overrides: Mapping[str, Any]) -> Settings:
    """Read and check workflow.yaml.

    Args:
        project: where to look.
        overrides: keys given on the command line (`--config scale=cpu`), which go before the file's.

    Raises:
        ConfigError: an unknown key or study, a value of the wrong type, a trace that is not there, an unknown GPU.
    """
    file = project.workflow_file
    content = {"studies": sorted(project.study_files), **read_yaml(file)}
    workflow = _checked(content, file)
    if overrides:
        content.update({key: _listed(key, value) for key, value in overrides.items()})
        workflow = _checked(content, "--config")
    where = file if "studies" not in overrides else "--config"
    if not workflow.studies and not workflow.traces:
        raise ConfigError("no studies and no traces to run", where=where, expected="`studies`, `traces`, or both")
    for name in workflow.studies:
        if name not in project.study_files:
            raise ConfigError(f"there is no study '{name}'", where=where, next_step=near(name, project.study_files))
        if name in RESERVED or not _NAME.fullmatch(name):
            raise ConfigError(
                f"'{name}' is not a valid study name",
                where=project.study_files[name],
                expected=f"letters, digits, _, + and -, beginning with a letter or digit; not {' or '.join(RESERVED)}",
                next_step="rename the file",
            )
    scale = resolve_scale(workflow.scale)
    project.check_scale(scale, file if "scale" not in overrides else "--config")
    return Settings(
        studies=tuple(dict.fromkeys(workflow.studies)),
        variants=None if workflow.variants is None else tuple(workflow.variants),
        repeats=workflow.repeats,
        scale=scale,
        timeout_minutes=workflow.timeout_minutes,
        allow_targets=tuple(workflow.allow_targets),
        traces=_traces(workflow.traces, project, "--config" if "traces" in overrides else file),
        estimate_gpus=tuple(gpu_named(name).name for name in dict.fromkeys(workflow.estimate_gpus)),
        gates=workflow.gates,
    )


def _checked(content: Mapping[str, Any], where: str | Path) -> Workflow:
    workflow = convert(content, Workflow, where=where)
    for study, variants in workflow.gates.items():
        for variant, keys in variants.items():
            for key, limits in keys.items():
                convert(limits, Limits, where=f"{where}, gates.{study}.{variant}.{key}")
    return workflow


def _listed(key: str, value: Any) -> Any:
    # `--config studies=masked_loss` means a list of one.
    lists = ("studies", "variants", "allow_targets", "estimate_gpus")
    return [value] if key in lists and isinstance(value, str) else value


def _traces(entries: list[str | NamedTrace], project: Project, where: str | Path) -> dict[str, str]:
    traces: dict[str, str] = {}
    for entry in entries:
        path = entry if isinstance(entry, str) else entry.path
        stem = Path(path).name.removesuffix(".gz").removesuffix(".json")
        name = file_safe(stem) if isinstance(entry, str) else entry.name
        if not os.path.exists(project.workdir / path):  # noqa: PTH110  a name that is too long does not exist
            raise ConfigError(f"there is no trace '{path}'", where=where, next_step="correct `traces:`")
        if name in traces:
            raise ConfigError(
                f"two traces have the name '{name}'", where=where, next_step="write them as {name: ..., path: ...}"
            )
        traces[name] = path
    return traces
