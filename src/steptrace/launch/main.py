"""One part of a study of commands, as the workflow's rules start it.

    python -m steptrace.launch.main measure --config CONFIG --out RUNDIR --repeat K     run.json and what belongs to it
    python -m steptrace.launch.main predict --config CONFIG --out DIR                   prediction.json
    python -m steptrace.launch.main equivalence --config CONFIG --reference CONFIG --out DIR
                                                                                        equivalence.json

Errors end with a message and exit code 2. `{seed}` in a command is the study's seed, plus K in a run.
"""

import argparse
import json
import os
import shlex
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import yaml
from filelock import FileLock

from steptrace.errors import LaunchError, SteptraceError
from steptrace.files import write_text, write_versioned
from steptrace.launch.compare_outputs import verdict
from steptrace.launch.result import Named, prediction_of, write_results
from steptrace.launch.settings import LaunchSettings, Mode
from steptrace.launch.start import Launched, ended, launch, require_steps, why
from steptrace.record import PREDICTION_FILE, write_prediction

#: The environment variable that names a folder for what several checks share.
SHARED_VARIABLE: Final = "STEPTRACE_SHARED"


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(description="Measure, predict or compare a program of a study of commands.")
    parser.add_argument("part", choices=("measure", "predict", "equivalence"))
    parser.add_argument("--config", type=Path, required=True, help="resolved config of the variant (YAML)")
    parser.add_argument("--reference", type=Path, help="resolved config of the baseline, to compare with")
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    parser.add_argument("--repeat", type=int, default=0, help="number of the repeat, from 0")
    options = parser.parse_args(arguments)
    try:
        config = _read(options.config)
        if options.part == "measure":
            _measure(config, options.out, options.repeat)
        elif options.part == "predict":
            _predict(config, options.out)
        else:
            _equivalence(config, options.reference, options.out)
    except SteptraceError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    return 0


def _measure(config: dict[str, Any], out: Path, repeat: int) -> None:
    probe, scale = out / "probe", config["scale"]
    counts = (scale["warmup_steps"], scale["timed_steps"], config["profile"]["active"])
    settings = LaunchSettings(str(probe.resolve()), "measure", *counts, at_most_s=scale.get("at_most_s"))
    seed = config["seed"] + repeat
    launched = _launch(config, settings, seed)
    require_steps(launched)
    if not launched.complete:
        raise LaunchError(
            f"the program ended before its steps were measured: {ended(launched)}",
            where=_command(config, seed),
            next_step="see its own output; if it trains for fewer steps, set `steps` lower",
        )
    named = Named(config["study"], config["variant"], repeat, seed, config["digest"], config["scale"]["name"])
    write_results(launched, out, named, config["program"])
    shutil.rmtree(probe)


def _predict(config: dict[str, Any], out: Path) -> None:
    (out / PREDICTION_FILE).unlink(missing_ok=True)
    launched = _once(config, "predict", warmup=2, steps=config["followed"]["predicted_steps"])
    command = _command(config, config["seed"])
    prediction = prediction_of(launched, command)
    if launched.failed:
        raise LaunchError(
            f"the program failed before its steps were followed: {ended(launched)}",
            where=command,
            next_step=why(launched),
        )
    write_prediction(out, prediction)


def _equivalence(config: dict[str, Any], baseline: Path, out: Path) -> None:
    reference = _read(baseline)
    own, other = _outputs(config), _outputs_once(reference, baseline.name)
    equivalence = verdict(own, other)
    if equivalence["status"] == "differs" and verdict(_outputs(reference), other)["status"] != "same":
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
    outputs: list[dict[str, Any]] = launched.ranks[0]["outputs"]
    return outputs


def _once(config: dict[str, Any], mode: Mode, *, warmup: int, steps: int) -> Launched:
    gpus = config["distributed"]["world_size"]
    with tempfile.TemporaryDirectory(prefix="steptrace-") as scratch:
        launched = _launch(config, LaunchSettings(scratch, mode, warmup, steps, profile=0, gpus=gpus), config["seed"])
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
    config: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return config


if __name__ == "__main__":
    sys.exit(main())
