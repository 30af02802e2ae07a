"""One part of a study of commands, as the workflow's rules start it.

    python -m steptrace.launch.main measure --config CONFIG --out RUNDIR --repeat K     run.json and what belongs to it
    python -m steptrace.launch.main predict --config CONFIG --out DIR                   prediction.json
    python -m steptrace.launch.main equivalence --config CONFIG --reference CONFIG --out DIR
                                                                                        equivalence.json

Errors end with a message and exit code 2. `{seed}` in a command is the study's seed, plus K in a run.

Equivalence compares the losses and gradients of the first steps of two programs. Both start from the same seed, so a
variant that draws the same random numbers matches up to rounding. The loss and the gradients of the first step are
checked; tolerances follow from the coarsest number format in use and the size of the network, as in
`steptrace.train.tolerance`. 16-bit gradients are not checked: rounding decides on which side of a kink a unit lies. The
tolerance of the loss grows tenfold with each later step, since updates amplify differences; a later step without a loss
is skipped. Programs with different samples in a step or different parameters, or whose own results vary from run to
run, are not comparable.
"""

import argparse
import json
import math
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from filelock import FileLock

from steptrace.config.yaml_file import read_yaml
from steptrace.errors import LaunchError, code_of
from steptrace.estimate.driver import driver_facts
from steptrace.estimate.gpus import gpu_named
from steptrace.files import scratch_folder, write_text, write_versioned
from steptrace.launch.result import Launched, ended, prediction_of, require_steps, why, write_results
from steptrace.launch.settings import JUDGED_STEPS, PERIOD_JUDGED, LaunchSettings, Mode
from steptrace.launch.start import launch
from steptrace.record import write_document
from steptrace.train.tolerance import ROUNDINGS, ROUNDOFF, Case, relative, verdict_on

_FLOAT32: Final = ROUNDOFF["float32"]
#: Factor on the loss's tolerance from one step to the next.
_GROWTH: Final = 10.0

Outputs = Mapping[str, Any]
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


def verdict(outputs: Sequence[Outputs], reference: Sequence[Outputs]) -> dict[str, Any]:
    """The content of equivalence.json: `same`, `differs` or `not comparable` with a `reason`."""
    reason = _not_comparable(outputs, reference)
    if reason is not None:
        return {"status": "not comparable", "reason": reason}
    tolerance = _tolerance(outputs[0], reference[0])
    steps = enumerate(zip(outputs, reference, strict=False))
    with_loss = [(n, own, other) for n, (own, other) in steps if own["loss"] is not None and other["loss"] is not None]
    return verdict_on([_case(number, own, other, tolerance) for number, own, other in with_loss])


def _case(number: int, own: Outputs, other: Outputs, tolerance: tuple[float, float | None]) -> Case:
    """Compare one step with the same step of the reference."""
    errors = {"loss": relative(own["loss"], other["loss"])}
    allowed = {"loss": tolerance[0] * _GROWTH**number}
    if number == 0:
        distances = list(map(_distance, own["gradients"], other["gradients"]))
        errors["gradient"] = math.nan if any(map(math.isnan, distances)) else max(distances, default=0.0)
        allowed |= {} if tolerance[1] is None else {"gradient": tolerance[1]}
    return Case(f"step {number + 1}", own["loss"], other["loss"], errors, allowed)


def _not_comparable(outputs: Sequence[Outputs], reference: Sequence[Outputs]) -> str | None:
    if not outputs or not reference:
        return "the program made no training step"
    own, other = outputs[0], reference[0]
    if own["loss"] is None or other["loss"] is None:
        return "the program's backward passes do not start from a scalar, so its loss is unknown"
    if not math.isfinite(other["loss"]):
        return "the baseline's own loss is infinite or NaN"
    if own["samples"] != other["samples"]:
        return f"a step has {own['samples']} samples, the baseline's has {other['samples']}"
    values = [sorted(gradient["values"] for gradient in step["gradients"]) for step in (own, other)]
    if values[0] != values[1]:
        return "the gradients' sizes differ from the baseline's"
    return None


def _tolerance(own: Outputs, other: Outputs) -> tuple[float, float | None]:
    """Relative tolerances of the loss and of the gradients (None: not checked)."""
    formats = [name for step in (own, other) for name in step["formats"]]
    unit = max((ROUNDOFF.get(name, _FLOAT32) for name in formats), default=_FLOAT32)
    depth = max(own["depth"], other["depth"], 1)
    terms = max(own["terms"], other["terms"], 1)
    sums = math.sqrt(depth * terms) * min(unit, _FLOAT32)
    loss = 2 * (ROUNDINGS * math.sqrt(depth) * unit + sums)
    # The order of a batch's sums is not fixed: each gradient adds up as many terms as there are positions.
    return loss, 100 * loss if unit <= _FLOAT32 else None


def _distance(own: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """The distance of two gradients relative to the second, estimated from their projections."""
    square = sum((a - b) ** 2 for a, b in zip(own["projections"], other["projections"], strict=True))
    size = other["norm"]
    error = math.sqrt(square / max(len(own["projections"]), 1))
    return error / size if size > 0 else error


if __name__ == "__main__":
    sys.exit(main())
