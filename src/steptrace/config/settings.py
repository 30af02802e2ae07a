"""The settings of config/workflow.yaml (studies, repeats, scale, gates), and the folders of a project."""

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from steptrace.config.convert import convert
from steptrace.config.schema import Text
from steptrace.config.yaml_file import line_of, read_yaml
from steptrace.errors import ConfigError, near
from steptrace.estimate.gpus import gpu_named
from steptrace.machine import resolve_scale
from steptrace.root import ROOT

#: Reserved names: other folders of results/, and the page that lists the studies.
RESERVED = ("traces", "prepared", "index")
#: Characters of a name that becomes a folder; file systems take 255, and suffixes are added.
MOST_NAME: Final = 200
#: Valid study names; they become folders, pages and arguments of commands.
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_+-]{{0,{MOST_NAME - 1}}}")
NAME_FORM: Final = f"at most {MOST_NAME} letters, digits, _, + and -, beginning with a letter or digit"
_TraceName = Annotated[
    str,
    Meta(
        pattern=rf"^[A-Za-z0-9][A-Za-z0-9_.+-]{{0,{MOST_NAME - 1}}}\Z",
        title=f"at most {MOST_NAME} letters, digits, _, ., + and -, beginning with a letter or digit",
    ),
]
_Prefix = Annotated[
    str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_.]*\Z", title="the beginning of a dotted name, such as mypackage.losses")
]


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The limits of a gate on one figure."""

    at_least: float | None = None
    at_most: float | None = None
    equals: str | float | bool | None = None
    at_most_ratio: Annotated[float, Meta(gt=0)] | None = None
    baseline: Text | None = None
    allow: list[Text] = []
    scale: str | None = None

    def __post_init__(self) -> None:
        limits = {name: getattr(self, name) for name in ("at_least", "at_most", "equals", "at_most_ratio")}
        for name, limit in limits.items():
            if isinstance(limit, float) and not math.isfinite(limit):
                raise ValueError(f"{name} is {limit}: a limit is a finite number")
        if (self.at_most_ratio is None) != (self.baseline is None):
            raise ValueError("at_most_ratio and baseline belong together")
        if all(limit is None for limit in (self.at_least, self.at_most, self.equals, self.at_most_ratio)):
            raise ValueError("a gate has no limit: give at_least, at_most, equals or at_most_ratio")


class WorkflowSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The keys of workflow.yaml; once read, `scale` is never `auto`."""

    studies: list[str]
    repeats: Annotated[int, Meta(ge=1, le=10_000)] = 3
    scale: Text = "auto"
    timeout_minutes: Annotated[float, Meta(gt=0, le=525_600)] | None = None
    allow_targets: list[_Prefix] = []
    traces: dict[_TraceName, Text] = {}
    estimate_gpus: list[str] = []
    gates: dict[str, dict[str, dict[str, Any]]] = {}


@dataclass(frozen=True)
class Project:
    """The folders of a project: `root` holds the workflow; `workdir` gets the results and may have its own config/."""

    root: Path
    workdir: Path

    @classmethod
    def here(cls) -> "Project":
        """The project of the current folder; its workflow is a checkout's own, or the one that came with steptrace."""
        folder = Path.cwd()
        return cls(root=folder if (folder / "workflow" / "rules").is_dir() else ROOT, workdir=folder)

    @property
    def config_folders(self) -> list[Path]:
        """The configuration folders, in the order in which they are searched; the first one has a config.yaml."""
        user = self.workdir / "config"
        shared = self.root / "config"
        if user.resolve() == shared.resolve() or not user.is_dir():
            return [shared]
        return [user, shared] if (user / "config.yaml").is_file() else [shared, user]

    @property
    def study_files(self) -> dict[str, Path]:
        """The file of every study by name; one in the working directory replaces one of the same name."""
        folders = [self.root / "config" / "study", self.workdir / "config" / "study"]
        return {path.stem: path for folder in folders for path in sorted(folder.glob("*.yaml"))}

    def check_scale(self, scale: str, where: str | Path) -> None:
        """Check that a file in a folder `scale/` describes a scale.

        Raises:
            ConfigError: there is no such scale.
        """
        scales = {path.stem for folder in self.config_folders for path in (folder / "scale").glob("*.yaml")}
        if scale not in scales:
            raise ConfigError(f"there is no scale '{scale}'", where=where, next_step=near(scale, scales))

    @property
    def workflow_file(self) -> Path:
        """The workflow.yaml in force: the working directory's, or the one that came with the workflow."""
        user_file = self.workdir / "config" / "workflow.yaml"
        return user_file if user_file.is_file() else self.root / "config" / "workflow.yaml"


def read_settings(project: Project, overrides: Mapping[str, Any]) -> WorkflowSettings:
    """Read and check workflow.yaml.

    Args:
        project: where to look.
        overrides: keys of the command line (`--config scale=cpu`), which replace those of the file.

    Raises:
        ConfigError: an unknown key or study, a value of the wrong type, a trace that does not exist, an unknown GPU.
    """
    lists = ("studies", "allow_targets", "estimate_gpus")  # `studies=masked_loss` is a list of one
    changes = {key: [value] if key in lists and isinstance(value, str) else value for key, value in overrides.items()}
    file = project.workflow_file
    where = f"{file}{' and --config' if changes else ''}"
    content = {"studies": sorted(project.study_files), **read_yaml(file), **changes}
    settings = convert(content, WorkflowSettings, where=where if changes else file, file=file)
    for study, variants in settings.gates.items():
        for variant, keys in variants.items():
            for key, limits in keys.items():
                at = ("gates", study, variant, key)
                place = f"{where}, gates.{study}.{variant}.{key}"
                convert(limits, Limits, where=place, file=file, at=at)
    if not settings.studies and not settings.traces:
        raise ConfigError("no studies and no traces to run", where=where, expected="`studies`, `traces`, or both")
    for number, name in enumerate(settings.studies):
        if name not in project.study_files:
            place = _line(where, file, ("studies", number))
            raise ConfigError(f"there is no study '{name}'", where=place, next_step=near(name, project.study_files))
        if name in RESERVED or not _NAME.fullmatch(name):
            raise ConfigError(
                f"'{name}' is not a valid study name",
                where=project.study_files[name],
                expected=f"{NAME_FORM}; not {' or '.join(RESERVED)}",
                next_step="rename the file",
            )
    for trace, path in settings.traces.items():
        if not os.path.exists(project.workdir / path):  # noqa: PTH110  a name that is too long does not exist
            expected = "a file or folder, relative to the working directory"
            place = _line(where, file, ("traces", trace))
            raise ConfigError(f"there is no trace '{path}' (`traces.{trace}`)", where=place, expected=expected)
    gpus = []
    for number, name in enumerate(settings.estimate_gpus):
        try:
            gpus.append(gpu_named(name).name)
        except ConfigError as error:
            error.where = error.where or _line(where, file, ("estimate_gpus", number))
            raise
    gpus = list(dict.fromkeys(gpus))
    scale = resolve_scale(settings.scale)
    project.check_scale(scale, where)
    return msgspec.structs.replace(
        settings,
        studies=list(dict.fromkeys(settings.studies)),
        scale=scale,
        estimate_gpus=gpus,
    )


def _line(where: str, file: Path, keys: tuple[str | int, ...]) -> str:
    """`where`, with the line of a key if the file holds the key."""
    line = line_of(file, keys)
    return where if line is None or where != str(file) else f"{where}, line {line}"
