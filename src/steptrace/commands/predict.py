"""`steptrace predict`: the syncs that a training step would make on CUDA, predicted without a GPU.

Its parts are modules of their own: `follow` and `follow_study` follow the programs, `estimates` estimates their time on
GPUs, `prediction_text` writes the lines, and `budget` holds the predictions to their budgets.
"""

import argparse
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from steptrace.commands.budget import (
    Budgets,
    awaited_branches,
    breaks_over,
    budget_answers,
    not_allowed,
    recompilations_over,
    syncs_over,
    syncs_within,
    useless_entries,
)
from steptrace.commands.console import batches, gpu_names, minutes, not_negative, positive, say, show, warn
from steptrace.commands.estimates import Baselines, estimates_by_name
from steptrace.commands.follow import WARMUP, FollowedProgram, follow_command
from steptrace.commands.prediction_text import instead, study_lines, text_of
from steptrace.documents.budget import OverBudget
from steptrace.documents.command_answers import PredictAnswer, PredictedVariant, PredictStudyAnswer, predict_answer
from steptrace.documents.estimate import Estimate
from steptrace.errors import ConfigError
from steptrace.estimate.gpus import Gpu, gpu_named
from steptrace.exit_codes import ExitCode
from steptrace.files import scratch_folder
from steptrace.launch.settings import JUDGED_STEPS, PREDICTED_STEPS
from steptrace.words.budget import (
    breaks_within_in_words,
    not_covered_in_words,
    over_in_words,
    recompilations_within_in_words,
    syncs_within_in_words,
)
from steptrace.words.lines import TextLine

#: The options that apply only to programs, with their defaults.
_PROGRAM_OPTIONS: Final[dict[str, Any]] = {"steps": None, "warmup": WARMUP, "devices": None, "compile": False}
#: The most places of syncs that are listed, so that a prediction fits a screen.
_MOST_PLACES: Final = 20
#: The placeholder of the batch size in a command.
_BATCH: Final = "{batch}"

#: What was followed, by batch size; None where the batch is the program's own.
_ByBatch = Mapping[int | None, Sequence[FollowedProgram]]


def add(command: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    command.description = (
        "Follow training steps on a virtual CUDA device and say where the host would wait for the GPU: those of any "
        "program (`steptrace predict -- python train.py`), or of a study's variants. "
        "Exit code 1 if a budget is exceeded, or if a program fails before all its steps are "
        "followed; 2 if something cannot be followed."
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
        "do gets the answers of the first",
    )
    command.add_argument(
        "--compile",
        action="store_true",
        help="say what torch.compile of the program's model would give on the GPUs of --gpu: step, launches, memory, "
        "and what breaks its graph",
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
    command.add_argument(
        "--breaks",
        type=not_negative,
        metavar="N",
        help="the most graph breaks that compiled code may have; code that Dynamo cannot follow is over any limit",
    )
    command.add_argument(
        "--recompilations",
        type=not_negative,
        metavar="N",
        help="how often code may be compiled again; code that Dynamo cannot follow is over any limit",
    )
    command.add_argument(
        "--timeout-minutes",
        type=minutes,
        metavar="M",
        help="interrupt the program after so long: steps followed until then count. A variant of a study is ended, by "
        "default after `timeout_minutes` of its workflow.yaml",
    )
    command.set_defaults(**_PROGRAM_OPTIONS)


def run(arguments: argparse.Namespace) -> int:
    """Predict, print, and return the exit code."""
    if arguments.allow and arguments.budget is None:
        raise ConfigError("--allow needs --budget", next_step="add --budget N")
    gpus = [gpu_named(name) for name in arguments.gpu]  # before anything is followed
    if arguments.compile and not gpus:
        raise ConfigError(
            "--compile needs a GPU, whose kernels would differ", next_step="add --gpu, such as --gpu H100"
        )
    study: str | None = None
    baselines: Baselines | None = None
    if "--" not in arguments.command_line and len(arguments.target) == 1:
        study = arguments.target[0]
        by_batch, baselines = _follow_study(study, arguments, gpus)
    else:
        by_batch = _follow_program(arguments, gpus)
    estimates = estimates_by_name(by_batch, gpus, None if baselines is None else baselines.by_variant) if gpus else {}
    # Syncs are shown and judged for the last batch.
    followed = list(by_batch.values())[-1]
    lines = _lines(followed, estimates, arguments, study, baselines)
    budgets = Budgets(
        syncs=arguments.budget,
        allow=arguments.allow,
        breaks=arguments.breaks,
        recompilations=arguments.recompilations,
    )
    show(arguments, _answer(followed, estimates, study, budgets), lines)
    return _judge(by_batch, arguments)


def _follow_program(arguments: argparse.Namespace, gpus: Sequence[Gpu]) -> _ByBatch:
    """Follow the command, once for each batch of `--batch`."""
    _check_batches(arguments.target, arguments.batch)
    options: dict[str, Any] = {
        "warmup": arguments.warmup,
        "steps": arguments.steps,
        "devices": arguments.devices,
        "gpu": gpus[0] if gpus else None,
        "compiles": arguments.compile,
        "follows_compiled": arguments.breaks is not None or arguments.recompilations is not None,
        "judged": arguments.budget is not None,
        "limit_s": None if arguments.timeout_minutes is None else 60 * arguments.timeout_minutes,
    }
    name = shlex.join(arguments.target)
    return {
        batch: [replace(follow_command(_with_batch(arguments.target, batch), **options), name=name)]
        for batch in arguments.batch or (None,)
    }


def _follow_study(study: str, arguments: argparse.Namespace, gpus: Sequence[Gpu]) -> tuple[_ByBatch, Baselines]:
    """Follow a study's variants, once for each batch of `--batch`, and return their baselines, too."""
    if Path(study).is_file():
        next_step = f"steptrace predict -- {'python ' if study.endswith('.py') else ''}{study}"
        raise ConfigError("this is a file, not a study", where=study, next_step=next_step)
    unused = next((name for name, default in _PROGRAM_OPTIONS.items() if getattr(arguments, name) != default), None)
    if unused is not None:
        raise ConfigError(f"--{unused} is for programs, not for studies", where=study, expected="a program, after --")
    # Imported here, since to follow a program takes no plan of a study.
    from steptrace.commands.follow_study import baselines_of, follow_study, named_study, time_limit_s

    with scratch_folder() as scratch:
        planned = named_study(study, Path(scratch))
        options = ("--gpu", gpus[0].name) if gpus else ()
        limit_s = time_limit_s(arguments.timeout_minutes)
        if not arguments.batch:
            return {None: follow_study(planned, Path(scratch), options, limit_s=limit_s)}, baselines_of(planned)
        if not planned.kind.is_ours:
            next_step = (
                "write it in the study's command, or: steptrace predict --batch N -- COMMAND, with {batch} in it"
            )
            raise ConfigError("--batch does not apply to a study of commands", where=study, next_step=next_step)
        return {
            batch: follow_study(planned, Path(scratch), ["--batch-size", str(batch), *options], limit_s=limit_s)
            for batch in arguments.batch
        }, baselines_of(planned)


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


def _lines(
    followed: Sequence[FollowedProgram],
    estimates: Mapping[str, Sequence[Estimate]],
    arguments: argparse.Namespace,
    study: str | None,
    baselines: Baselines | None,
) -> list[str | TextLine]:
    """The lines on every program that ran on the virtual GPU; of a study a table of all variants comes first."""
    lines: list[str | TextLine] = []
    known = {
        program.shown: (program.prediction, estimates.get(program.name, ()))
        for program in followed
        if program.prediction is not None and program.prediction.ran_on_gpu
    }
    if study is not None and known:
        head, *rest = study_lines(study, known, None if baselines is None else baselines.shown)
        lines += [TextLine(head, "answer"), *rest]
    for shown, (prediction, estimated) in known.items():
        head, *rest = text_of(
            shown,
            prediction,
            estimated,
            more_steps="--steps" if study is None else None,
            most=_MOST_PLACES,
            advice=instead(not_allowed(prediction, arguments.allow)) if study is None else [],
        )
        lines += [*([""] if lines else []), TextLine(head, "answer"), *rest]
    return lines


def _answer(
    followed: Sequence[FollowedProgram],
    estimates: Mapping[str, Sequence[Estimate]],
    study: str | None,
    budgets: Budgets,
) -> PredictAnswer | PredictStudyAnswer | None:
    """The answer of `--json`: on the program, or on all variants of a study."""
    variants = tuple(
        PredictedVariant(
            name=program.name,
            error=None if program.error is None else str(program.error),
            prediction=None
            if program.prediction is None
            else predict_answer(program.prediction, estimates.get(program.name), budget_answers(program, budgets)),
        )
        for program in followed
    )
    return variants[0].prediction if study is None else PredictStudyAnswer(study=study, variants=variants)


def _judge(by_batch: _ByBatch, arguments: argparse.Namespace) -> int:
    """Print what failed, what ran on no GPU and what is over budget, and return the exit code."""
    followed = list(by_batch.values())[-1]
    programs = [program for batch in by_batch.values() for program in batch]
    idle = [program for program in followed if program.prediction is not None and not program.prediction.ran_on_gpu]
    failed = [program for program in programs if program.error is not None]
    ended_early = any(program.failed for program in programs)
    over = _over_budgets(followed, arguments, is_known=not idle and not failed and not ended_early)
    for broken in over:
        _say_on_stderr(f"over budget: {over_in_words(broken)}")
    for program in idle:
        _say_on_stderr(
            f"error: {program.shown}: nothing ran on the virtual CUDA device, so there is nothing to predict\n"
            "  next: let the program use 'cuda': torch.cuda.is_available() is True while it is followed"
        )
    for program in failed:
        _say_on_stderr(f"error: {program.shown}: {program.error}")
    if failed:
        return ExitCode.ERROR
    return ExitCode.NOT_HELD if over or idle or ended_early else ExitCode.DONE


def _over_budgets(
    followed: Sequence[FollowedProgram], arguments: argparse.Namespace, *, is_known: bool
) -> list[OverBudget]:
    """The budgets that are exceeded.

    Prints the branches that a budget does not cover. If all programs were followed to the end (`is_known`), prints that
    a budget holds.
    """
    over: list[OverBudget] = []
    if arguments.budget is not None:
        for entry in useless_entries(followed, arguments.allow):
            warn(f"--allow {entry}: no predicted sync is there, so it allows nothing")
        over = syncs_over(followed, arguments.budget, arguments.allow)
        for awaited in awaited_branches(followed, arguments.allow):
            warn(not_covered_in_words(awaited))
        if is_known and not over:
            say(syncs_within_in_words(syncs_within(followed, arguments.budget, arguments.allow)))
    if arguments.breaks is not None:
        breaks = breaks_over(followed, arguments.breaks)
        if is_known and not breaks:
            say(breaks_within_in_words(arguments.breaks))
        over = [*over, *breaks]
    if arguments.recompilations is not None:
        recompilations = recompilations_over(followed, arguments.recompilations)
        if is_known and not recompilations:
            say(recompilations_within_in_words(arguments.recompilations))
        over = [*over, *recompilations]
    return over


def _say_on_stderr(text: str) -> None:
    print(f"steptrace: {text}", file=sys.stderr)  # noqa: T201
