"""`steptrace predict`: the syncs that a training step would make on CUDA, predicted without a GPU.

Each program is followed in a process of its own: `steptrace.predict.main` for a config of our own trainings, and for a
study of commands `steptrace.launch.main`, which starts the program. This process does not import torch, and the virtual
device cannot be unregistered from one that does.
"""

import argparse
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import msgspec

from steptrace import format as fmt
from steptrace.commands.console import batches, gpu_names, not_negative, positive, say, show, warn
from steptrace.commands.prediction_text import as_json, estimates, estimates_of_study, instead, text_of
from steptrace.compare.gates import described, over_budget, unfollowed
from steptrace.config.digest import Cache
from steptrace.config.settings import Project, read_settings
from steptrace.config.study import GPU_CONFIG, Composer, Study, load_study
from steptrace.documents.estimate import Estimate
from steptrace.documents.prediction import PredictedStep
from steptrace.documents.run import Status
from steptrace.errors import ConfigError, PredictError, SteptraceError, near
from steptrace.estimate.driver import driver_facts
from steptrace.estimate.gpus import Gpu, gpu_named
from steptrace.files import scratch_folder, write_text
from steptrace.launch.result import ended, prediction_of, require_steps, why
from steptrace.launch.settings import (
    JUDGED_STEPS,
    PERIOD_FOLLOWED,
    PERIOD_JUDGED,
    PREDICTED_STEPS,
    LaunchSettings,
)
from steptrace.launch.start import launch
from steptrace.record import read_prediction
from steptrace.train.supervise import Job, supervise
from steptrace.workflow.checks import prediction_job

#: A budget is exceeded, or a program has failed partway.
EXIT_BROKEN: Final = 1
#: Steps of a program before those that are followed.
WARMUP: Final = 2
#: The options that only a program takes, with their defaults.
_OF_PROGRAMS: Final[dict[str, Any]] = {"steps": None, "warmup": WARMUP, "devices": None}
#: Where a command has its batch size.
_BATCH: Final = "{batch}"
#: Each takes some hundred MB.
_AT_ONCE: Final = 4


@dataclass(frozen=True)
class Followed:
    """One program and its prediction; without one the error says why. `failed`: it ended by an error partway."""

    name: str
    prediction: PredictedStep | None
    error: SteptraceError | None = None
    failed: bool = False


def add(command: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    command.description = (
        "Follow training steps on a virtual CUDA device and say where the host would wait for the GPU: those of any "
        "program (`steptrace predict -- python train.py`), or of a study's variants. "
        "Exit code 1 if a budget is exceeded, or if a program fails before all its steps are followed; 2 if something "
        "cannot be followed."
    )
    command.add_argument(
        "target",
        nargs="+",
        metavar="STUDY|-- COMMAND",
        help="a study's name (all its variants, at the scale of a GPU), or after -- a program that trains, with its "
        "arguments",
    )
    command.add_argument(
        "--steps",
        type=positive,
        metavar="N",
        help=f"steps of a program; default: {PREDICTED_STEPS}, with --budget {JUDGED_STEPS}, and more where the "
        "program does something else every few steps",
    )
    command.add_argument("--warmup", type=positive, metavar="N", help="steps of a program before them; default: 2")
    command.add_argument(
        "--devices",
        type=positive,
        metavar="N",
        help="GPUs of the virtual machine, for a program that starts its ranks itself; default: as many as a launcher "
        "starts ranks, or 1",
    )
    command.add_argument(
        "--gpu",
        type=gpu_names,
        default=(),
        metavar="GPU[,GPU]",
        help="estimate step time, GPU busy and memory on these, such as H100,L4; a program that asks what its GPU can "
        "do is told of the first",
    )
    command.add_argument(
        "--batch",
        type=batches,
        default=(),
        metavar="N[,N]",
        help="batches to follow, in place of a study's own, or where {batch} stands in a command",
    )
    command.add_argument("--budget", type=not_negative, metavar="N", help="the most syncs a step may make")
    command.add_argument(
        "--allow",
        action="append",
        default=[],
        metavar="FILE:LINE",
        help="syncs there do not count against the budget; also a FILE or a function's name; may be repeated",
    )
    command.set_defaults(**_OF_PROGRAMS)


def run(arguments: argparse.Namespace) -> int:
    """Predict, print, and return the exit code."""
    if arguments.allow and arguments.budget is None:
        raise ConfigError("--allow needs --budget", next_step="add --budget N")
    gpus = [gpu_named(name) for name in arguments.gpu]  # before anything is followed
    if "--" not in arguments.given and len(arguments.target) == 1:
        study = arguments.target[0]
        by_batch, baseline = _follow_study(study, arguments, gpus)
        return _report(by_batch, gpus, arguments, study, baseline)
    _check_batches(arguments.target, arguments.batch)
    counts: dict[str, Any] = {
        "warmup": arguments.warmup,
        "steps": arguments.steps,
        "devices": arguments.devices,
        "gpu": gpus[0] if gpus else None,
        "judged": arguments.budget is not None,
    }
    name = shlex.join(arguments.target)
    by_batch = {
        batch: [replace(follow_command(_with_batch(arguments.target, batch), **counts), name=name)]
        for batch in arguments.batch or (None,)
    }
    return _report(by_batch, gpus, arguments, None, None)


def _follow_study(
    study: str, arguments: argparse.Namespace, gpus: Sequence[Gpu]
) -> tuple[dict[int | None, list[Followed]], str]:
    """Follow a study's variants; by batch, None where it is their own. The second result is its baseline's name."""
    if Path(study).is_file():
        next_step = f"steptrace predict -- {'python ' if study.endswith('.py') else ''}{study}"
        raise ConfigError("this is a file, not a study", where=study, next_step=next_step)
    given = next((name for name, default in _OF_PROGRAMS.items() if getattr(arguments, name) != default), None)
    if given is not None:
        raise ConfigError(f"--{given} is for programs, not for studies", where=study, expected="a program, after --")
    with scratch_folder() as scratch:
        planned = named_study(study, Path(scratch))
        options = ("--gpu", gpus[0].name) if gpus else ()
        if not arguments.batch:
            return {None: follow(planned, Path(scratch), options)}, planned.baseline
        if planned.of_commands:
            step = "write it in the study's command, or: steptrace predict --batch N -- COMMAND, with {batch} in it"
            raise ConfigError("--batch does not apply to a study of commands", where=study, next_step=step)
        sizes = {batch: ["--batch-size", str(batch), *options] for batch in arguments.batch}
        return {batch: follow(planned, Path(scratch), size) for batch, size in sizes.items()}, planned.baseline


def _check_batches(command: Sequence[str], batches: Sequence[int]) -> None:
    """Raise `ConfigError` where `--batch` and `{batch}` in a command do not go together."""
    holds = any(_BATCH in word for word in command)
    if batches and not holds:
        raise ConfigError(
            f"--batch without {_BATCH} in the command changes nothing",
            where=shlex.join(command),
            next_step=f"write {_BATCH} where the command has its batch size: --batch-size {_BATCH}",
        )
    if holds and not batches:
        raise ConfigError(
            f"{_BATCH} in the command is not replaced", where=shlex.join(command), next_step="add --batch N[,N]"
        )


def _with_batch(command: Sequence[str], batch: int | None) -> list[str]:
    """The command with a batch in its place."""
    return [word if batch is None else word.replace(_BATCH, str(batch)) for word in command]


def _report(
    by_batch: Mapping[int | None, Sequence[Followed]],
    gpus: Sequence[Gpu],
    arguments: argparse.Namespace,
    study: str | None,
    baseline: str | None,
) -> int:
    """Print what was followed, a study or a program, and return the exit code; syncs are those of the last batch."""
    followed = list(by_batch.values())[-1]
    every = [entry for entries in by_batch.values() for entry in entries]
    of_gpus = _estimates(by_batch, gpus, baseline) if gpus else {}
    texts = []
    for entry in followed:
        if entry.prediction is not None and entry.prediction.ran_on_gpu:
            lines = text_of(entry.name, entry.prediction, of_gpus.get(entry.name, ()))
            texts.append("\n".join([*lines, *(instead(entry.prediction.sites) if study is None else ())]))
    variants = [
        {
            "name": entry.name,
            "error": None if entry.error is None else str(entry.error),
            "prediction": None if entry.prediction is None else as_json(entry.prediction, of_gpus.get(entry.name)),
        }
        for entry in followed
    ]
    document = variants[0]["prediction"] if study is None else {"study": study, "variants": variants}
    show(arguments, document, "\n\n".join(texts))
    idle = [
        f"{entry.name}: nothing ran on the virtual CUDA device, so there is nothing to predict"
        for entry in followed
        if entry.prediction is not None and not entry.prediction.ran_on_gpu
    ]
    over = [] if arguments.budget is None else _over(followed, arguments.budget, arguments.allow)
    for line in over:
        print(f"steptrace: over budget: {line}", file=sys.stderr)  # noqa: T201
    for line in idle:
        next_step = "let the program use 'cuda': torch.cuda.is_available() is True while it is followed"
        print(f"steptrace: error: {line}\n  next: {next_step}", file=sys.stderr)  # noqa: T201
    failed = [entry for entry in every if entry.error is not None]
    for entry in failed:
        print(f"steptrace: error: {entry.name}: {entry.error}", file=sys.stderr)  # noqa: T201
    return 2 if failed else EXIT_BROKEN if over or idle or any(entry.failed for entry in every) else 0


def _estimates(
    by_batch: Mapping[int | None, Sequence[Followed]], gpus: Sequence[Gpu], baseline: str | None
) -> dict[str, list[Estimate]]:
    """The estimates of each program or variant, of each batch on each GPU; compared with a study's baseline."""
    by_name: dict[str, dict[int | None, PredictedStep]] = {}
    for batch, entries in by_batch.items():
        for entry in entries:
            if entry.prediction is not None:
                known = entry.prediction.batch_size if batch is None else batch
                by_name.setdefault(entry.name, {})[known] = entry.prediction
    if baseline is None:
        return {name: estimates(predictions, gpus) for name, predictions in by_name.items()}
    return estimates_of_study(by_name, baseline, gpus)


def _over(followed: Sequence[Followed], budget: int, allow: Sequence[str]) -> list[str]:
    """One line for each program that makes more syncs than it may, naming the places."""
    lines = []
    for entry in followed:
        sites = over_budget((site.site for site in (() if entry.prediction is None else entry.prediction.sites)), allow)
        total = sum(site.count_per_step or 0 for site in sites)
        if total > budget:
            beyond = " beyond those allowed" if allow else ""
            places = "".join(f"\n  {described(site)}" for site in sites)
            lines.append(f"{entry.name}: {fmt.plural(total, 'sync')} per step{beyond}, at most {budget}{places}")
            continue
        if entry.prediction is None:
            continue
        steps = len(entry.prediction.by_step)
        lines += [
            f"{entry.name}: {branch.place} does something else every {branch.every} steps, but only {steps} were "
            f"followed\n  next: --steps {branch.every}, or --allow {branch.place}"
            for branch in unfollowed(entry.prediction.branches, steps, allow)
        ]
    return lines


def follow_command(
    command: Sequence[str],
    *,
    warmup: int,
    steps: int | None = None,
    devices: int | None = None,
    gpu: Gpu | None = None,
    judged: bool = False,
) -> Followed:
    """Follow a program; its standard output goes to standard error, since this command's is the prediction.

    Args:
        command: the program and its arguments.
        warmup: steps before those that are followed.
        steps: how many are followed; None: some, and whole periods of its branches on a step counter.
        devices: GPUs of the virtual machine.
        gpu: which ones they are, for a program that asks; None: H100.
        judged: whether a budget rests on them, which takes more.
    """
    with scratch_folder() as scratch:
        least, longest = (JUDGED_STEPS, PERIOD_JUDGED) if judged else (PREDICTED_STEPS, PERIOD_FOLLOWED)
        settings = LaunchSettings(
            scratch,
            "predict",
            warmup,
            least if steps is None else steps,
            profile=0,
            gpus=devices,
            longest_period=longest if steps is None else 1,
            driver=None if gpu is None else asdict(driver_facts(gpu)),
        )
        launched = launch(command, settings, output=sys.stderr, status=say)
        require_steps(launched)
        prediction = prediction_of(launched, shlex.join(command))
        if not launched.complete:
            next_step = f"\n  next: {why(launched)}" if launched.failed else ""
            warn(f"{ended(launched)} after {len(prediction.by_step)} of {settings.steps} steps{next_step}")
        # Of a program that was followed to the end of what was asked for it is the launcher's doing.
        prediction = msgspec.structs.replace(prediction, exit_code=None if launched.complete else launched.exit_code)
        return Followed(shlex.join(command), prediction, failed=launched.failed)


def follow(study: Study, scratch: Path, options: Sequence[str] = ()) -> list[Followed]:
    """Follow every variant of a study as a GPU would train it, each in a process of its own.

    Args:
        study: the study.
        scratch: a folder for configs, predictions and logs.
        options: further arguments of `steptrace.predict.main`, or of `steptrace.launch.main`.
    """
    at_once = min(len(study.variants), os.cpu_count() or 1, _AT_ONCE)
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // at_once)))
    jobs = []
    for variant in study.variants:
        folder = scratch / variant.name
        write_text(folder / GPU_CONFIG, variant.on_gpu.snapshot(study=study.name, variant=variant.name))
        jobs.append(prediction_job(folder, of_command=study.of_commands, options=options))
    by_name = {}
    for job, status in supervise(jobs, at_once=at_once):
        name = job.out.parent.name
        by_name[name] = _read(name, job, status, of_program=study.of_commands)
        say(f"{len(by_name)} of {len(jobs)} followed: {name}")
    return [by_name[variant.name] for variant in study.variants]


def _read(name: str, job: Job, status: Status, *, of_program: bool) -> Followed:
    """A prediction, or why there is none: what the process has printed."""
    if status.exit_code == 0:
        return Followed(name, read_prediction(job.out.parent))
    before, _, reason = (job.out / job.log).read_text(encoding="utf-8", errors="replace").rpartition("error: ")
    last = next((line for line in reversed(before.splitlines()) if line.strip()), None)
    # Of a program of the user's, whose output nobody else shows.
    output = "" if last is None or not of_program else f"\n  its last line: {last.strip()}"
    return Followed(name, None, PredictError((reason.strip() or str(status.error)) + output))


def named_study(name: str, folder: Path, changes: Mapping[str, Any] | None = None) -> Study:
    """The study of this project, or else of those that come with steptrace, with every variant resolved.

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
