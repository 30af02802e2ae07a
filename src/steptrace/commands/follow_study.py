"""Follows the variants of a study on the virtual GPU, each in a process of its own.

A variant that our training program runs is followed by `steptrace.predict.main`, and any other program by
`steptrace.jobs.command_checks`, which starts it.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from steptrace import format as fmt
from steptrace.commands.console import say
from steptrace.commands.estimates import Baselines
from steptrace.commands.follow import FollowedProgram
from steptrace.config.digest import Cache
from steptrace.config.resolved import GPU_CONFIG
from steptrace.config.settings import Project, read_settings
from steptrace.config.study import Composer, Study, load_study
from steptrace.documents.run import Status
from steptrace.errors import ConfigError, PredictError, near
from steptrace.files import write_text
from steptrace.jobs.checks import prediction_job
from steptrace.jobs.supervise import Job, message_of, supervise
from steptrace.run_folder import read_prediction

#: The most processes at once; each takes some hundred MB.
_AT_ONCE: Final = 4


def baselines_of(study: Study) -> Baselines:
    """What the variants of a study are compared with."""
    by_variant = {variant.name: variant.baseline for variant in study.variants}
    entries = {variant.name: variant.entry for variant in study.variants}
    several = len(set(by_variant.values())) > 1
    return Baselines(by_variant, entries[study.baseline] if several else fmt.variant(study.baseline))


def follow_study(
    study: Study, scratch: Path, options: Sequence[str] = (), *, limit_s: float | None = None
) -> list[FollowedProgram]:
    """Follow every variant of a study as a GPU would train it, each in a process of its own.

    Args:
        study: the study.
        scratch: a folder for configs, predictions and logs.
        options: further arguments of `steptrace.predict.main`, or of `steptrace.jobs.command_checks`.
        limit_s: seconds after which a variant is ended, without a prediction; None: never.
    """
    at_once = min(len(study.variants), os.cpu_count() or 1, _AT_ONCE)
    for preparation in study.preparations.values():
        if preparation.is_there:
            for variable, value in preparation.gives.items():
                os.environ.setdefault(variable, value)
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // at_once)))
    jobs = []
    for variant in study.variants:
        folder = scratch / variant.name
        write_text(folder / GPU_CONFIG, variant.on_gpu.snapshot(study=study.name, variant=variant.name))
        jobs.append(prediction_job(folder, study.kind, options=options))
    by_name = {}
    for job, status in supervise(jobs, at_once=at_once, timeout_s=limit_s):
        name = job.out.parent.name
        by_name[name] = _read(name, job, status, shows_output=not study.kind.is_ours)
        say(f"{len(by_name)} of {len(jobs)} followed: {name}")
    return [by_name[variant.name] for variant in study.variants]


def _read(name: str, job: Job, status: Status, *, shows_output: bool) -> FollowedProgram:
    """The prediction of a job, or the error by which it ended.

    With `shows_output` the error has the last line that the program itself has printed.
    """
    if status.exit_code == 0:
        return FollowedProgram(name, read_prediction(job.out.parent))
    message = message_of(job.out) or str(status.error)
    log = (job.out / job.log).read_text(encoding="utf-8", errors="replace")
    output = log.rpartition(message)[0].removesuffix("error: ")
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    last = f"\n  its last line: {lines[-1]}" if lines and shows_output else ""
    return FollowedProgram(name, None, PredictError(message + last))


def time_limit_s(minutes: float | None) -> float | None:
    """The seconds that a variant may take: these minutes, else `timeout_minutes` of workflow.yaml; None: no limit."""
    limit = read_settings(Project.here(), {}).timeout_minutes if minutes is None else minutes
    return None if limit is None else 60 * limit


def named_study(name: str, folder: Path, changes: Mapping[str, Any] | None = None) -> Study:
    """The study of this project, or one that comes with steptrace, with every variant resolved.

    Args:
        name: the study's.
        folder: where composed configurations may be kept meanwhile.
        changes: settings that differ from the defaults, such as `scale`.

    Raises:
        ConfigError: there is no such study, or it cannot be resolved.
    """
    project = Project.here()
    if name not in project.study_files:
        raise ConfigError(
            f"there is no study '{name}'",
            where=", ".join(dict.fromkeys(str(file.parent) for file in project.study_files.values())),
            expected="a study's name, or `--` and a command that trains",
            next_step=near(name, project.study_files),
        )
    settings = read_settings(project, {"studies": [name], **(changes or {})})
    return load_study(name, Composer(project, settings, Cache(folder / "plan.cache")))
