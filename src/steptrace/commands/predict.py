"""`steptrace predict`: the syncs that a training step would make on CUDA, predicted without a GPU.

This process does not import torch: see `steptrace.commands.predicted`.
"""

import argparse
import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from steptrace import format as fmt
from steptrace.commands.estimated import as_json, check_batches, estimates, table, with_batch
from steptrace.commands.named_study import named_study
from steptrace.commands.options import batches, gpu_names, not_negative, positive
from steptrace.commands.output import say, show, warn
from steptrace.commands.predicted import Followed, follow
from steptrace.commands.prediction_text import instead, text_of
from steptrace.compare.gates import described, over_budget
from steptrace.documents.estimate import Estimate
from steptrace.documents.syncs import predicted_site
from steptrace.errors import ConfigError
from steptrace.estimate.gpus import Gpu, gpu_named
from steptrace.launch.settings import LaunchSettings
from steptrace.launch.start import Streams, ended, launch, require_steps, why

#: A budget is exceeded, or a program has failed partway.
EXIT_BROKEN: Final = 1
#: Steps of a program that are followed, and those before them.
STEPS: Final = 4
WARMUP: Final = 2
#: The options that only a program takes, with their defaults.
_OF_PROGRAMS: Final[dict[str, Any]] = {"steps": STEPS, "warmup": WARMUP, "devices": None}


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
    command.add_argument("--steps", type=positive, metavar="N", help="steps of a program; default: 4")
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
        help="estimate step time, GPU busy and memory on these, such as H100,L4",
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
        return _report(_follow_study(study, arguments), gpus, arguments, study)
    check_batches(arguments.target, arguments.batch)
    counts = {"warmup": arguments.warmup, "steps": arguments.steps, "devices": arguments.devices}
    by_batch = {
        batch: [follow_command(with_batch(arguments.target, batch), **counts)] for batch in arguments.batch or (None,)
    }
    return _report(by_batch, gpus, arguments, shlex.join(arguments.target))


def _follow_study(study: str, arguments: argparse.Namespace) -> dict[int | None, list[Followed]]:
    """Follow a study's variants; by batch, None where it is their own."""
    if Path(study).is_file():
        next_step = f"steptrace predict -- {'python ' if study.endswith('.py') else ''}{study}"
        raise ConfigError("this is a file, not a study", where=study, next_step=next_step)
    given = next((name for name, default in _OF_PROGRAMS.items() if getattr(arguments, name) != default), None)
    if given is not None:
        raise ConfigError(f"--{given} is for programs, not for studies", where=study, expected="a program, after --")
    by_batch: dict[int | None, list[Followed]] = {}
    for batch in arguments.batch or (None,):
        with tempfile.TemporaryDirectory(prefix="steptrace-") as scratch:
            kind, programs = study_programs(study, Path(scratch))
            if kind == "command" and batch is not None:
                step = "write it in the study's command, or: steptrace predict --batch N -- COMMAND, with {batch} in it"
                raise ConfigError("--batch does not apply to a study of commands", where=study, next_step=step)
            of_batch = [] if batch is None else ["--batch-size", str(batch)]
            by_batch[batch] = follow(kind, programs, Path(scratch), of_batch)
    return by_batch


def _report(
    by_batch: Mapping[int | None, Sequence[Followed]], gpus: Sequence[Gpu], arguments: argparse.Namespace, target: str
) -> int:
    """Print what was followed, and return the exit code; the syncs are those of the last batch."""
    followed = list(by_batch.values())[-1]
    every = [entry for entries in by_batch.values() for entry in entries]
    single = len(followed) == 1 and followed[0].name == "command"
    given = target if single else None
    of_gpus = {entry.name: _estimates(by_batch, entry.name, gpus) for entry in followed if gpus}
    texts = []
    for entry in followed:
        if entry.prediction and ran_on_gpu(entry.prediction):
            lines = text_of(given or entry.name, entry.prediction)
            if of_gpus.get(entry.name):
                lines += table(of_gpus[entry.name], ranks=len(entry.prediction.get("by_rank") or ()))
            texts.append("\n".join([*lines, *(instead(entry.prediction["sites"]) if single else ())]))
    variants = [_as_json(entry, of_gpus.get(entry.name)) for entry in followed]
    document = variants[0]["prediction"] if single else {"study": target, "variants": variants}
    show(arguments, document, "\n\n".join(texts))
    idle = [
        f"{given or entry.name}: nothing ran on the virtual CUDA device, so there is nothing to predict"
        for entry in followed
        if entry.prediction and not ran_on_gpu(entry.prediction)
    ]
    over = [] if arguments.budget is None else _over(followed, arguments.budget, arguments.allow, given)
    for line in over:
        print(f"steptrace: over budget: {line}", file=sys.stderr)  # noqa: T201
    for line in idle:
        next_step = "let the program use 'cuda': torch.cuda.is_available() is True while it is followed"
        print(f"steptrace: error: {line}\n  next: {next_step}", file=sys.stderr)  # noqa: T201
    failed = [entry for entry in every if entry.error is not None]
    for entry in failed:
        print(f"steptrace: error: {entry.name}: {entry.error}", file=sys.stderr)  # noqa: T201
    return 2 if failed else EXIT_BROKEN if over or idle or any(entry.failed for entry in every) else 0


def _estimates(by_batch: Mapping[int | None, Sequence[Followed]], name: str, gpus: Sequence[Gpu]) -> list[Estimate]:
    """The estimates of one program, of each batch on each GPU."""
    predictions = {
        entry.prediction.get("batch_size") if batch is None else batch: entry.prediction
        for batch, entries in by_batch.items()
        for entry in entries
        if entry.name == name and entry.prediction
    }
    return estimates(predictions, gpus)


def _as_json(entry: Followed, of_gpus: Sequence[Estimate] | None) -> dict[str, Any]:
    """A prediction as prediction.json has it, null with an error where there is none; with its estimates."""
    prediction = entry.prediction
    if prediction is not None:
        prediction = {name: value for name, value in prediction.items() if name != "operator_calls"}
        if of_gpus is not None:
            prediction["estimate"] = as_json(of_gpus)
    return {"name": entry.name, "error": None if entry.error is None else str(entry.error), "prediction": prediction}


def ran_on_gpu(prediction: dict[str, Any]) -> bool:
    """Whether anything of the program ran on the virtual GPU."""
    return any(prediction[key] for key in ("operators", "total", "unknown"))


def follow_command(command: Sequence[str], *, warmup: int, steps: int, devices: int | None = None) -> Followed:
    """Follow a program; its standard output goes to standard error, since this command's is the prediction."""
    with tempfile.TemporaryDirectory(prefix="steptrace-") as scratch:
        settings = LaunchSettings(scratch, "predict", warmup, steps, profile=0, gpus=devices)
        launched = launch(command, settings, streams=Streams(sys.stderr, say))
        require_steps(launched)
        from steptrace.launch.result import prediction_of

        prediction = prediction_of(launched, shlex.join(command))
        if not launched.complete:
            next_step = f"\n  next: {why(launched)}" if launched.failed else ""
            warn(f"{ended(launched)} after {len(prediction['by_step'])} of {steps} steps{next_step}")
        # Of a program that was followed to the end of what was asked for it is the launcher's doing.
        prediction["exit_code"] = None if launched.complete else launched.exit_code
        return Followed("command", prediction, failed=launched.failed)


def study_programs(study: str, folder: Path) -> tuple[str, dict[str, str]]:
    """Every variant of a study as a GPU would train it: their kind, and the file of each one's config in `folder`."""
    loaded = named_study(study, folder, expected="a study's name, or `--` and a command that trains")
    files = {variant.name: folder / f"{variant.name}.yaml" for variant in loaded.variants}
    for variant in loaded.variants:
        text = variant.on_gpu.snapshot(study=study, variant=variant.name)
        files[variant.name].write_text(text, encoding="utf-8")
    kind = "command" if "program" in loaded.variants[0].config else "config"
    return kind, {name: str(file) for name, file in files.items()}


def _over(followed: Sequence[Followed], budget: int, allow: Sequence[str], given: str | None) -> list[str]:
    """One line for each program that makes more syncs than it may, naming the places; `given` is what was asked for."""
    lines = []
    for entry in followed:
        sites = over_budget(map(predicted_site, entry.prediction["sites"] if entry.prediction else ()), allow)
        total = sum(site.count_per_step or 0 for site in sites)
        if total > budget:
            beyond = " beyond those allowed" if allow else ""
            places = "".join(f"\n  {described(site)}" for site in sites)
            lines.append(
                f"{given or entry.name}: {fmt.plural(total, 'sync')} per step{beyond}, at most {budget}{places}"
            )
    return lines
