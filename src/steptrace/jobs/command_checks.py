"""The checks of a variant that is any program, not a training by ours: a process for each check.

    python -m steptrace.jobs.command_checks predict --config CONFIG --out DIR
    python -m steptrace.jobs.command_checks equivalence --config CONFIG --reference CONFIG --out DIR

The result is DIR/prediction.json or DIR/equivalence.json. An error ends with a message and exit code 2. `{seed}` in a
command stands for the study's seed.

Equivalence compares the records of two programs' first steps: see `steptrace.equivalence.programs`.
"""

import argparse
import json
import os
import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
from filelock import FileLock

from steptrace.config.resolved import CommandConfig, read_command
from steptrace.documents.equivalence import NotComparable
from steptrace.documents.probe import StepOutputs
from steptrace.equivalence.programs import not_comparable, verdict_on_programs
from steptrace.errors import LaunchError, code_of
from steptrace.estimate.driver import driver_facts
from steptrace.estimate.gpus import gpu_named
from steptrace.files import decode_json, read_bytes, scratch_folder, write_text
from steptrace.jobs.checks import SHARED_VARIABLE
from steptrace.jobs.launch import launch
from steptrace.jobs.variant import command_of
from steptrace.launch.result import Launched, ended, prediction_of, require_steps, why
from steptrace.launch.settings import JUDGED_STEPS, LaunchSettings, Mode
from steptrace.limits import PERIOD_JUDGED
from steptrace.run_folder import write_document


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(description="Predict or compare a program of a study of commands.")
    parser.add_argument("check", choices=("predict", "equivalence"))
    parser.add_argument("--config", type=Path, required=True, help="resolved config of the variant (YAML)")
    parser.add_argument("--reference", type=Path, help="resolved config of the baseline, to compare with")
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    parser.add_argument("--gpu", help="in `predict`: the GPU that the virtual device says it is; default: H100")
    options = parser.parse_args(arguments)
    return code_of(lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    config = read_command(options.config)
    if options.check == "predict":
        _predict(config, options.out, options.gpu)
    else:
        _equivalence(config, options.reference, options.out)
    return 0


def _predict(config: CommandConfig, out: Path, gpu: str | None) -> None:
    steps = config.followed.predicted_steps
    launched = _once(
        config,
        "predict",
        warmup=2,
        steps=JUDGED_STEPS if steps is None else steps,
        longest_period=PERIOD_JUDGED if steps is None else 1,
        driver=None if gpu is None else asdict(driver_facts(gpu_named(gpu))),
    )
    command = shlex.join(command_of(config, config.seed))
    prediction = prediction_of(launched, command)
    if launched.failed:
        raise LaunchError(
            f"the program failed before its steps were followed: {ended(launched)}",
            where=command,
            next_step=why(launched),
        )
    write_document(out, prediction)


def _equivalence(config: CommandConfig, baseline: Path, out: Path) -> None:
    reference = read_command(baseline)
    variant_steps = _outputs(config)
    baseline_steps = _outputs_once(reference, baseline.name)
    result = verdict_on_programs(variant_steps, baseline_steps)
    if result.status == "differs" and verdict_on_programs(_outputs(reference), baseline_steps).status != "same":
        result = not_comparable(NotComparable(code="baseline_varies"))
    write_document(out, result)


def _outputs_once(config: CommandConfig, name: str) -> list[StepOutputs]:
    """A baseline's outputs. The first of several checks computes them, and the others reuse them."""
    folder = os.environ.get(SHARED_VARIABLE)
    if folder is None:
        return _outputs(config)
    kept = Path(folder, f"{name}.outputs.json")
    with FileLock(f"{kept}.lock"):
        if not kept.exists():
            outputs = msgspec.to_builtins(_outputs(config))
            write_text(kept, json.dumps(outputs))  # unlike msgspec, `json` writes a loss that is NaN
        return msgspec.convert(decode_json(read_bytes(kept)), list[StepOutputs])


def _outputs(config: CommandConfig) -> list[StepOutputs]:
    launched = _once(config, "outputs", warmup=0, steps=config.followed.compared_steps)
    return list(launched.ranks[0].outputs)


def _once(config: CommandConfig, mode: Mode, *, warmup: int, steps: int, **more: Any) -> Launched:
    """Run the program to the end of its measured steps; `more` are further settings of the launch."""
    with scratch_folder() as scratch:
        settings = LaunchSettings(scratch, mode, warmup, steps, profile=0, gpus=config.ranks, **more)
        program = config.program
        launched = launch(command_of(config, config.seed), settings, cwd=Path(program.cwd).resolve(), env=program.env)
        require_steps(launched)
        return launched


if __name__ == "__main__":
    sys.exit(main())
