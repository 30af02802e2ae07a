"""What a person wrote in YAML, read into declared types; config/workflow.yaml: studies, repeats, scale, gates."""

import os
import re
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar, get_args, get_origin, get_type_hints

import msgspec
import yaml
from msgspec import Meta

from steptrace.config.schema import Text
from steptrace.errors import ConfigError, near
from steptrace.estimate.gpus import gpu_named
from steptrace.machine import resolve_scale
from steptrace.root import ROOT

_T = TypeVar("_T")
#: What msgspec says of a wrong name, and where in the document.
_WRONG_NAME: Final = re.compile(
    r"(?:Object contains unknown field `(?P<key>.*?)`|Invalid enum value '(?P<value>.*?)')(?: - at `\$\.(?P<at>.*)`)?"
)
#: Reserved names: other folders of results/, and the page that lists the studies.
RESERVED = ("traces", "extension", "index")
#: Valid study names; they become folders, pages and arguments of commands.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_+-]*")


class _Loader(yaml.CSafeLoader if hasattr(yaml, "CSafeLoader") else yaml.SafeLoader):  # type: ignore[misc]
    """A safe loader that refuses duplicate keys, of which YAML keeps the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:  # noqa: FBT001, FBT002 - PyYAML's own signature
        mapping: dict[Hashable, Any] = super().construct_mapping(node, deep=deep)
        keys = [key.value for key, _ in node.value]
        for number, (key, _) in enumerate(node.value):
            if key.value in keys[:number]:
                where = f"{key.start_mark.name}, line {key.start_mark.line + 1}"
                raise ConfigError(f"duplicate key '{key.value}'", where=where, next_step="keep one of them")
        return mapping


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping that the YAML file `path` holds.

    Raises:
        ConfigError: the file is missing, is not YAML, holds a key twice or is no mapping.
    """
    try:
        with path.open("rb") as file:
            document = yaml.load(file, Loader=_Loader)
    except OSError as error:
        raise ConfigError(f"cannot be read ({error})", where=path) from error
    except yaml.YAMLError as error:
        raise not_yaml(error, path) from error
    if not isinstance(document, dict | None):
        raise ConfigError("is not a mapping", where=path, expected="a mapping `key: value`")
    return document or {}


def not_yaml(error: yaml.YAMLError, where: object) -> ConfigError:
    """Return an error that says in one line what PyYAML refused, and where."""
    mark = getattr(error, "problem_mark", None)
    problem = str(getattr(error, "problem", None) or error).splitlines()[0]
    return ConfigError(
        f"is not valid YAML: {problem}",
        where=f"{where}, line {mark.line + 1}" if mark else str(where),
        next_step="quote a text, such as an override, that contains [ { : or @, and indent with spaces",
    )


def convert(document: Any, kind: type[_T], *, where: str | Path) -> _T:
    """Read plain data into a type with limits.

    Args:
        document: as YAML gives it.
        kind: a msgspec struct, or another type that msgspec converts to.
        where: the file, and the place of `document` in it, for messages.

    Raises:
        ConfigError: an unknown or missing key, or a value of the wrong type or out of its limits.
    """
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(str(error).replace("`$.", "`"), where=where, next_step=_hint(str(error), kind)) from error


def _hint(message: str, kind: Any) -> str | None:
    """For a key that is none of those declared the nearest of them, for a value those there are."""
    match = _WRONG_NAME.fullmatch(message)
    if match is None:
        return None
    for part in match["at"].split(".") if match["at"] else ():
        kind = get_type_hints(kind)[part]
        kind = next((one for one in get_args(kind) if isinstance(one, type) or get_origin(one)), kind)
    return near(match["key"], get_type_hints(kind)) if match["key"] else f"choose {' or '.join(get_args(kind))}"


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
