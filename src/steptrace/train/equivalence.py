"""Checks a variant's loss, gradient and network against the study's float64 reference.

`python -m steptrace.train.equivalence --config CONFIG.yaml --reference REFERENCE.yaml --out DIR` writes
DIR/equivalence.json. The variant runs on its own device, in its own precision, memory format and torch.compile mode;
the reference runs on the CPU in float64. Both start with the same weights and have the same inputs: one batch per seed
of the config, then the data set's edge cases.

The computation is a chain, and each link is checked separately, on inputs that variant and reference share:

- the *loss* and its *gradient by the predictions*, on the variant's predictions, used by the reference as they are;
- the network: its *predictions*, and in float32 the *gradient by its parameters* that follows from the same gradient by
  the predictions.

The gradient by the parameters as a whole cannot be checked in 16 bits: a ReLU, a maximum or a clamp so near its kink
that rounding decides the side changes it by any amount, in correct variants, too. In the study `giou` one of 128 hidden
units on the other side of 0 changes it by 42 %. Predictions are continuous at a kink, and with shared predictions the
loss's own kinks are at the same place. The rounding of a 16-bit backward pass is not checked.

Relative error of the loss: |loss - reference| / |reference|. Of the others, over all values as one vector:
||value - reference|| / ||reference||, in the Euclidean norm. If a reference is exactly 0, the absolute error is used.
Non-finite values never pass; their error is written as null. Tolerances follow from the number formats and the sizes:
see `tolerance.py`; the config's `precision.tolerance` overrides them.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import torch
from hydra.utils import instantiate
from omegaconf import DictConfig
from torch import Tensor

from steptrace.errors import SteptraceError, TrainError
from steptrace.files import write_versioned
from steptrace.train.loop import Batch
from steptrace.train.outputs import reference_outputs, variant_outputs, vector
from steptrace.train.precision import Precision, prepared
from steptrace.train.setup import build_dataset, build_loss, collate_of, device_of, load_config, seed_everything
from steptrace.train.tolerance import NetworkSize, gradient_tolerance, loss_tolerance
from steptrace.train.verdict import Case, verdict_on

EQUIVALENCE_FILE = "equivalence.json"

CPU: Final = torch.device("cpu")


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit code (0 whether or not the variant differs)."""
    parser = argparse.ArgumentParser(description="Check a variant's loss and gradient against the float64 reference.")
    parser.add_argument("--config", type=Path, required=True, help="resolved config of the variant (YAML)")
    parser.add_argument("--reference", type=Path, required=True, help="resolved config of the study's reference")
    parser.add_argument("--out", type=Path, required=True, help="folder for equivalence.json")
    options = parser.parse_args(arguments)
    try:
        config, reference = load_config(options.config), load_config(options.reference)
        verdict = verdict_on([compare_on(config, reference, *case) for case in cases_of(config)])
        write_versioned(options.out / EQUIVALENCE_FILE, verdict)
    except SteptraceError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    sys.stdout.write(f"equivalence: {verdict['status']}, largest relative error {verdict['max_rel_err']}\n")
    return 0


def cases_of(config: DictConfig) -> Iterator[tuple[str, int, Batch]]:
    """Name, seed of the weights, and batch of every case: one per seed, then the data set's edge cases, if any."""
    seeds = list(config.equivalence.seeds)
    for seed in seeds:
        dataset: Any = build_dataset(config, seed)
        samples = [dataset[i % len(dataset)] for i in range(config.equivalence.batch_size)]
        yield f"seed {seed}", seed, tuple(collate_of(dataset)(samples))
    dataset = build_dataset(config, seeds[0])
    if hasattr(dataset, "edge_cases"):
        for number, batch in enumerate(dataset.edge_cases(), start=1):
            yield f"edge case {number}", seeds[0], batch


def compare_on(
    config: DictConfig,
    reference: DictConfig,
    name: str,
    seed: int,
    batch: Batch,
) -> Case:
    """Compare variant and reference on one batch, both with the variant's initial weights of `seed`."""
    seed_everything(seed)
    model = instantiate(config.model, **config.equivalence.model, _convert_="all")
    reference_model = instantiate(reference.model, **reference.equivalence.model, _convert_="all")
    try:
        reference_model.load_state_dict(model.state_dict())
    except RuntimeError as error:
        raise TrainError(
            f"the variant's weights do not fit the reference's model ({error})",
            where="model",
            expected="parameters of the same names and shapes",
        ) from error
    size = NetworkSize.of(model)
    device = device_of(config)
    precision = Precision.from_config(config.precision, device.type)
    model = prepared(model.to(device), config.step)
    got = variant_outputs(model, build_loss(config, device), precision, batch, seed)
    with size.watched(reference_model):
        expected = reference_outputs(reference_model.double(), build_loss(reference, CPU), batch, got, seed)
    terms, dtype = sum(part.numel() for part in got.predictions), got.predictions[0].dtype
    given = config.precision.tolerance
    return Case(
        name=name,
        loss=got.loss,
        reference_loss=expected.loss,
        errors={
            "loss": relative_error(_one(got.loss), _one(expected.loss)),
            "gradient": relative_error(vector(got.gradient), vector(expected.gradient)),
            "predictions": relative_error(vector(got.predictions), vector(expected.predictions)),
            "parameters": relative_error(got.parameters.double(), expected.parameters),
        },
        tolerance={
            "loss": loss_tolerance(got.loss_dtype, terms) if given.loss is None else given.loss,
            "gradient": gradient_tolerance(got.loss_dtype, terms, dtype) if given.gradient is None else given.gradient,
            "predictions": size.predictions(config.precision, dtype),
            "parameters": size.parameters(),
        },
    )


def relative_error(got: Tensor, reference: Tensor) -> float:
    """||got - reference|| / ||reference||, or ||got|| where the reference is 0; NaN if either is not finite."""
    size = float(torch.linalg.vector_norm(reference))
    error = float(torch.linalg.vector_norm(got - reference))
    return error / size if size > 0 else error


def _one(value: float) -> Tensor:
    return torch.tensor([value], dtype=torch.float64)


if __name__ == "__main__":
    sys.exit(main())
