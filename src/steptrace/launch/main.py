"""One part of a study of commands, as the workflow's rules start it.

    python -m steptrace.launch.main measure --config CONFIG --out RUNDIR --repeat K     run.json and what belongs to it
    python -m steptrace.launch.main predict --config CONFIG --out DIR                   prediction.json
    python -m steptrace.launch.main equivalence --config CONFIG --reference CONFIG --out DIR
                                                                                        equivalence.json

Errors end with a message and exit code 2. `{seed}` in a command is the study's seed, plus K in a run.

Equivalence compares what two programs record of their first steps: see `steptrace.equivalence.programs`.
"""

import argparse
import json
import os
import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from filelock import FileLock

from steptrace.config.yaml_file import read_yaml
from steptrace.equivalence.programs import verdict_on_programs
from steptrace.errors import LaunchError, code_of
from steptrace.estimate.driver import driver_facts
from steptrace.estimate.gpus import gpu_named
from steptrace.files import scratch_folder, write_text, write_versioned
from steptrace.launch.result import Launched, ended, prediction_of, require_steps, why, write_results
from steptrace.launch.settings import JUDGED_STEPS, PERIOD_JUDGED, LaunchSettings, Mode
from steptrace.launch.start import launch
from steptrace.record import write_document

#: The environment variable that names a folder for what several checks share.
SHARED_VARIABLE: Final = "STEPTRACE_SHARED"


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(description="Measure, predict or compare a program of a study of commands.")
    parser.add_argument("part", choices=("measure", "predict", "equivalence"))
    parser.add_argument("--config", type=Path, required=True, help="resolved config of the variant (YAML)")
    parser.add_argument("--reference", type=Path, help="resolved config of the baseline, to compare with")
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    parser.add_argument("--gpu", help="in `predict`: the GPU that the program is told of; default: H100")
    parser.add_argument("--repeat", type=int, default=0, help="number of the repeat, from 0")
    options = parser.parse_args(arguments)
    return code_of(lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    config = _read(options.config)
    if options.part == "measure":
        _measure(config, options.out, options.repeat)
    elif options.part == "predict":
        _predict(config, options.out, options.gpu)
    else:
        _equivalence(config, options.reference, options.out)
    return 0


def _measure(config: dict[str, Any], out: Path, repeat: int) -> None:
    scale, seed = config["scale"], config["seed"] + repeat
    counts = (scale["warmup_steps"], scale["timed_steps"], config["profile"]["active"])
    out.mkdir(parents=True, exist_ok=True)
    with scratch_folder(out.resolve()) as probe:  # beside the results, since a trace may be large
        settings = LaunchSettings(probe, "measure", *counts, at_most_s=scale["at_most_s"])
        launched = _launch(config, settings, seed)
        require_steps(launched)
        if not launched.complete:
            raise LaunchError(
                f"the program ended before its steps were measured: {ended(launched)}",
                where=_command(config, seed),
                next_step="see its own output; if it trains for fewer steps, set `steps` lower",
            )
        labels = {key: config[key] for key in ("study", "variant", "digest")}
        write_results(launched, out, config["program"], **labels, repeat=repeat, seed=seed, scale=scale["name"])


def _predict(config: dict[str, Any], out: Path, gpu: str | None) -> None:
    steps = config["followed"]["predicted_steps"]
    launched = _once(
        config,
        "predict",
        warmup=2,
        steps=JUDGED_STEPS if steps is None else steps,
        longest_period=PERIOD_JUDGED if steps is None else 1,
        driver=None if gpu is None else asdict(driver_facts(gpu_named(gpu))),
    )
    command = _command(config, config["seed"])
    prediction = prediction_of(launched, command)
    if launched.failed:
        raise LaunchError(
            f"the program failed before its steps were followed: {ended(launched)}",
            where=command,
            next_step=why(launched),
        )
    write_document(out, prediction)


def _equivalence(config: dict[str, Any], baseline: Path, out: Path) -> None:
    reference = _read(baseline)
    own, other = _outputs(config), _outputs_once(reference, baseline.name)
    equivalence = verdict_on_programs(own, other)
    if equivalence["status"] == "differs" and verdict_on_programs(_outputs(reference), other)["status"] != "same":
        equivalence = {
            "status": "not comparable",
            "reason": "the baseline's own results differ between two runs: it needs a fixed seed",
        }
    write_versioned(out / "equivalence.json", equivalence)


def _outputs_once(config: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """A baseline's outputs, computed by the first of several checks and reused by the others."""
    folder = os.environ.get(SHARED_VARIABLE)
    if folder is None:
        return _outputs(config)
    kept = Path(folder, f"{name}.outputs.json")
    with FileLock(f"{kept}.lock"):
        if not kept.exists():
            write_text(kept, json.dumps(_outputs(config)))  # with NaN, if need be
        return list(json.loads(kept.read_text(encoding="utf-8")))


def _outputs(config: dict[str, Any]) -> list[dict[str, Any]]:
    launched = _once(config, "outputs", warmup=0, steps=config["followed"]["compared_steps"])
    return list(launched.ranks[0].outputs)


def _once(config: dict[str, Any], mode: Mode, *, warmup: int, steps: int, **more: Any) -> Launched:
    """Start the program once; `more` are further settings of the launch."""
    gpus = config["distributed"]["world_size"]
    with scratch_folder() as scratch:
        settings = LaunchSettings(scratch, mode, warmup, steps, profile=0, gpus=gpus, **more)
        launched = _launch(config, settings, config["seed"])
        require_steps(launched)
        return launched


def _launch(config: dict[str, Any], settings: LaunchSettings, seed: int) -> Launched:
    program = config["program"]
    return launch(_words(program, seed), settings, cwd=Path(program["cwd"]).resolve(), env=program["env"])


def _words(program: dict[str, Any], seed: int) -> list[str]:
    return [word.replace("{seed}", str(seed)) for word in program["command"]]


def _command(config: dict[str, Any], seed: int) -> str:
    return shlex.join(_words(config["program"], seed))


def _read(path: Path) -> dict[str, Any]:
    return read_yaml(path)


if __name__ == "__main__":
    sys.exit(main())
