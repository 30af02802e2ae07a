"""`steptrace studies`: what can be run here, and what it costs; and a study by its name, for other commands."""

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steptrace.commands.output import columns, progress, show
from steptrace.errors import ConfigError, RecordError

if TYPE_CHECKING:
    from steptrace.config.cache import ComposeCache
    from steptrace.config.settings import Project, Settings
    from steptrace.config.study import Study


@dataclass(frozen=True)
class Cost:
    """One study: what running it means here.

    `steps` are those of one training of the baseline that is profiled, with all of its passes; `seconds` is what the
    trainings took that were run here, None unless all were. `error` says why a study cannot be planned.
    """

    name: str
    title: str
    by_default: bool
    scale: str
    variants: int | None = None
    trainings: int | None = None
    steps: int | None = None
    seconds: float | None = None
    error: str | None = None


def add(command: argparse.ArgumentParser) -> None:
    """Add the command's argument."""
    command.description = (
        "List the studies of this folder's config/study and those that come with steptrace: variants, trainings "
        "(variants times repeats), steps of each training with all of its passes, and how long the trainings took "
        "where they were run here."
    )
    command.add_argument("--scale", default="auto", metavar="NAME", help="cpu, gpu or auto (default)")


def run(arguments: argparse.Namespace) -> int:
    """Print the list and return the exit code: 2 if a study cannot be planned."""
    from steptrace.config.cache import ComposeCache
    from steptrace.config.settings import read_settings

    project = project_here()
    default = read_settings(project, {}).studies
    settings = read_settings(project, {"studies": sorted(project.study_files), "scale": arguments.scale})
    costs = []
    with progress() as line, tempfile.TemporaryDirectory(prefix="steptrace-") as scratch:
        cache = ComposeCache(project.config_folders, Path(scratch), allow=settings.allow_targets)
        for name in sorted(settings.studies, key=lambda name: (name not in default, name)):
            line.say(f"planning {name}")
            costs.append(_cost(name, project, settings, cache, by_default=name in default))
    show(arguments, [asdict(cost) for cost in costs], _text(costs))
    return 2 if any(cost.error for cost in costs) else 0


def _cost(name: str, project: "Project", settings: "Settings", cache: "ComposeCache", *, by_default: bool) -> Cost:
    from steptrace.config.study import outline

    try:
        study = outline(name, project, settings.scale, cache)
    except ConfigError as error:
        return Cost(name, name, by_default, settings.scale, error=str(error))
    trainings = len(study.variants) * settings.repeats
    seconds = _seconds(project.workdir / "results" / name, study.variants, settings.repeats)
    steps = steps_of(study.baseline.config)
    return Cost(name, study.title, by_default, settings.scale, len(study.variants), trainings, steps, seconds)


#: Steps after the profiled ones: one for the operators' lines, on a GPU two more for PyTorch's own warnings of syncs.
_LINES, _WARNED = 1, 2


def steps_of(config: Mapping[str, Any]) -> int:
    """The steps of a training that is profiled, of one of ours with those of its passes."""
    scale, profile = config["scale"], config["profile"]
    steps = scale["warmup_steps"] + scale["timed_steps"]
    if "program" not in config:
        steps += scale["section_steps"] + profile["wait"] + 1  # one for the memory
        if scale["input_steps"]:  # without those that come from a cold start
            steps += scale["input_steps"] + 1 + config["data"]["num_workers"]
    elif not profile["active"]:
        return int(steps)
    return int(steps + profile["warmup"] + profile["active"] + _LINES + _WARNED * (config["device"] == "cuda"))


def _seconds(results: Path, variants: Sequence[str], repeats: int) -> float | None:
    """What the trainings that lie here took, one after the other; None unless all are there and ended well."""
    from steptrace.record import read_status

    try:
        found = [read_status(results / variant / f"run{k}") for variant in variants for k in range(repeats)]
    except RecordError:
        return None
    return sum(status.wall_s for status in found) if all(status.status == "ok" for status in found) else None


def _text(costs: list[Cost]) -> str:
    rows = []
    for cost in costs:
        if cost.error is not None:
            rows.append((cost.name, *("-",) * 5, cost.error))
            continue
        took = "-" if cost.seconds is None else f"{cost.seconds:,.0f} s"
        default = "yes" if cost.by_default else ""
        rows.append((cost.name, default, str(cost.variants), str(cost.trainings), str(cost.steps), took, cost.title))
    head = ("study", "by default", "variants", "trainings", "steps of each", "took here", "title")
    scale = f"at scale {costs[0].scale}; " if costs else ""
    return "\n".join([*columns(head, rows), f"{scale}run one: snakemake --cores all --config 'studies=[STUDY]'"])


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
    from steptrace.config.cache import ComposeCache
    from steptrace.config.settings import read_settings
    from steptrace.config.study import load_study
    from steptrace.names import near

    project = project_here()
    if name not in project.study_files:
        raise ConfigError(
            f"there is no study '{name}'",
            where=project.root / "config" / "study",
            expected=expected,
            next_step=near(name, project.study_files),
        )
    settings = read_settings(project, {"studies": [name], "variants": None, **(changes or {})})
    return load_study(
        name, project, settings, ComposeCache(project.config_folders, folder, allow=settings.allow_targets)
    )
