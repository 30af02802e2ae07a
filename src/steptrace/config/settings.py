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
from steptrace.estimate.gpus import gpu_named
from steptrace.names import near
from steptrace.root import ROOT

#: Reserved names: other folders of results/, and the page that lists the studies.
RESERVED = ("traces", "extension", "index")
#: Valid study names; they become folders, pages and arguments of commands.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_+-]*")

Text = Annotated[str, Meta(min_length=1)]


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


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The keys of workflow.yaml; once read, `scale` is never `auto`."""

    studies: list[str]
    repeats: Annotated[int, Meta(ge=1, le=10_000)] = 3
    scale: Text = "auto"
    timeout_minutes: Annotated[float, Meta(gt=0, le=525_600)] | None = None
    allow_targets: list[Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_.]*\Z")]] = []
    traces: dict[Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]*\Z")], Text] = {}
    estimate_gpus: list[str] = []
    gates: dict[str, dict[str, dict[str, Any]]] = {}


@dataclass(frozen=True)
class Project:
    """Where things are: `root` holds the workflow, `workdir` receives the results and may bring its own config/."""

    root: Path
    workdir: Path

    @classmethod
    def here(cls) -> "Project":
        """The project of the current folder: a checkout's own workflow, else the one that belongs to this steptrace."""
        here = Path.cwd()
        return cls(root=here if (here / "workflow" / "rules").is_dir() else ROOT, workdir=here)

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


def read_settings(project: Project, overrides: Mapping[str, Any]) -> Settings:
    """Read and check workflow.yaml.

    Args:
        project: where to look.
        overrides: keys given on the command line (`--config scale=cpu`), which go before the file's.

    Raises:
        ConfigError: an unknown key or study, a value of the wrong type, a trace that is not there, an unknown GPU.
    """
    lists = ("studies", "allow_targets", "estimate_gpus")  # `studies=masked_loss` is a list of one
    given = {key: [value] if key in lists and isinstance(value, str) else value for key, value in overrides.items()}
    where = f"{project.workflow_file}{' and --config' if given else ''}"
    content = {"studies": sorted(project.study_files), **read_yaml(project.workflow_file), **given}
    settings = convert(content, Settings, where=where)
    for study, variants in settings.gates.items():
        for variant, keys in variants.items():
            for key, limits in keys.items():
                convert(limits, Limits, where=f"{where}, gates.{study}.{variant}.{key}")
    if not settings.studies and not settings.traces:
        raise ConfigError("no studies and no traces to run", where=where, expected="`studies`, `traces`, or both")
    for name in settings.studies:
        if name not in project.study_files:
            raise ConfigError(f"there is no study '{name}'", where=where, next_step=near(name, project.study_files))
        if name in RESERVED or not _NAME.fullmatch(name):
            raise ConfigError(
                f"'{name}' is not a valid study name",
                where=project.study_files[name],
                expected=f"letters, digits, _, + and -, beginning with a letter or digit; not {' or '.join(RESERVED)}",
                next_step="rename the file",
            )
    for path in settings.traces.values():
        if not os.path.exists(project.workdir / path):  # noqa: PTH110  a name that is too long does not exist
            expected = "a file or folder, relative to the working directory"
            raise ConfigError(f"there is no trace '{path}'", where=where, expected=expected)
    scale = resolve_scale(settings.scale)
    project.check_scale(scale, where)
    return msgspec.structs.replace(
        settings,
        studies=list(dict.fromkeys(settings.studies)),
        scale=scale,
        estimate_gpus=[gpu_named(name).name for name in dict.fromkeys(settings.estimate_gpus)],
    )
