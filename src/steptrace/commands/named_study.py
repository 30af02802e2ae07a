"""A study by its name, for commands."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steptrace.errors import ConfigError

if TYPE_CHECKING:
    from steptrace.config.settings import Project
    from steptrace.config.study import Study


def project_here() -> "Project":
    """The project of the current folder: a checkout's own workflow, else the one that belongs to this steptrace."""
    from steptrace.config.settings import Project
    from steptrace.root import ROOT

    here = Path.cwd()
    return Project(root=here if (here / "workflow" / "rules").is_dir() else ROOT, workdir=here)


def named_study(name: str, folder: Path, *, expected: str, changes: Mapping[str, Any] | None = None) -> "Study":
    """The study of this project, or else of those that come with steptrace, with every variant resolved.

    Args:
        name: the study's.
        folder: where composed configurations may be kept meanwhile.
        expected: what the command's argument may be, for the message if there is no such study.
        changes: settings that differ from the defaults, such as `scale`.

    Raises:
        ConfigError: there is no such study, or it cannot be resolved.
    """
    from steptrace.config.cache import Cache
    from steptrace.config.composer import Composer
    from steptrace.config.settings import read_settings
    from steptrace.config.study import load_study
    from steptrace.names import near

    project = project_here()
    if name not in project.study_files:
        raise ConfigError(
            f"there is no study '{name}'",
            where=", ".join(dict.fromkeys(str(file.parent) for file in project.study_files.values())),
            expected=expected,
            next_step=near(name, project.study_files),
        )
    settings = read_settings(project, {"studies": [name], **(changes or {})})
    return load_study(name, project, settings, Composer(project, settings.allow_targets, Cache(folder / "plan.json")))
