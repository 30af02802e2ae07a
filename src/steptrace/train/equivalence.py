"""Does a variant compute what its study means? Loss and gradient, held against a float64 reference.

`python -m steptrace.train.equivalence --config CONFIG.yaml --reference REFERENCE.yaml --out DIR` writes
DIR/equivalence.json. The variant runs on its own device, in its own precision and arranged as in its training (memory
format, torch.compile); the reference runs on the CPU in float64. Both begin with the same weights and take the same
inputs: one batch per seed of the config, then the data set's edge cases.

Relative error of the loss: |loss - reference| / |reference|. Of the gradient, over all parameters as one vector:
||gradient - reference|| / ||reference||, in the Euclidean norm. Where a reference is exactly 0 there is nothing to be
relative to, and the absolute error takes its place. A loss or gradient that is not finite never passes; its error has
no number and is written as null.
"""

import argparse
import math
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from hydra.utils import instantiate
from omegaconf import DictConfig
from torch import Tensor, nn

from steptrace.errors import SteptraceError, TrainError
from steptrace.record import write_json
from steptrace.train.arrangement import arranged
from steptrace.train.loop import Batch, to_device
from steptrace.train.precision import Precision
from steptrace.train.setup import build_dataset, collate_of, device_of, load_config, seed_everything

EQUIVALENCE_FILE = "equivalence.json"

#: A gradient scale is halved at most this often before its gradients count as not finite: from 2^16 down to 1.
_SCALE_BACKOFFS = 16


@dataclass(frozen=True)
class Answer:
    """A loss and the gradient of all parameters as one vector, in float64 on the CPU."""

    loss: float
    gradient: Tensor


@dataclass(frozen=True)
class Case:
    """One batch on which variant and reference were compared."""

    name: str
    loss: float
    reference_loss: float
    loss_rel_err: float
    gradient_rel_err: float

    def within(self, tolerance: Mapping[str, float]) -> bool:
        """Whether both errors are numbers no larger than `tolerance` allows."""
        # Written so that NaN, which compares false with everything, does not pass.
        return self.loss_rel_err <= tolerance["loss"] and self.gradient_rel_err <= tolerance["gradient"]


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit code (0 whether or not the variant differs)."""
    parser = argparse.ArgumentParser(description="Hold a variant's loss and gradient against the float64 reference.")
    parser.add_argument("--config", type=Path, required=True, help="resolved config of the variant (YAML)")
    parser.add_argument("--reference", type=Path, required=True, help="resolved config of the study's reference")
    parser.add_argument("--out", type=Path, required=True, help="folder for equivalence.json")
    options = parser.parse_args(arguments)
    try:
        config, reference = load_config(options.config), load_config(options.reference)
        cases = [compare_on(config, reference, *case) for case in cases_of(config)]
        verdict = verdict_on(cases, config.precision.tolerance)
        write_json(options.out / EQUIVALENCE_FILE, verdict)
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


def compare_on(config: DictConfig, reference: DictConfig, name: str, seed: int, batch: Batch) -> Case:
    """Variant against reference on one batch, with the variant's initial weights of `seed` in both."""
    device = device_of(config)
    precision = Precision.from_config(config.precision, device.type)
    precision.apply()
    seed_everything(seed)
    model = instantiate(config.model, **config.equivalence.model, _convert_="all")
    reference_model = instantiate(reference.model, **reference.equivalence.model, _convert_="all")
    try:
        reference_model.load_state_dict(model.state_dict())
    except RuntimeError as error:
        raise TrainError(
            f"the reference's model does not take the variant's weights ({error})",
            where="model",
            expected="parameters of the same names and shapes",
        ) from error
    model = arranged(model.to(device), config.step)
    got = variant_answer(model, _loss_of(config, device), precision, batch, seed)
    expected = reference_answer(reference_model.double(), _loss_of(reference, torch.device("cpu")), batch, seed)
    return Case(
        name=name,
        loss=got.loss,
        reference_loss=expected.loss,
        loss_rel_err=relative_error(torch.tensor([got.loss]).double(), torch.tensor([expected.loss]).double()),
        gradient_rel_err=relative_error(got.gradient, expected.gradient),
    )


def variant_answer(model: nn.Module, loss: Any, precision: Precision, batch: Batch, seed: int) -> Answer:
    """Loss and gradient as the training loop computes them, on the model's device and in its precision."""
    device = next(model.parameters()).device
    inputs, targets = to_device(batch, device)
    # As GradScaler does: start high, and back off while the scaled gradient overflows.
    scale = 2.0**_SCALE_BACKOFFS if precision.grad_scaler else 1.0
    while True:
        model.zero_grad(set_to_none=True)
        seed_everything(seed)  # a model that draws, say for dropout, draws the same each time
        with precision.autocast():
            value = loss(model(inputs), targets)
        (value * scale).backward()
        gradient = _flat_gradient(model.parameters()) / scale
        if scale == 1.0 or bool(gradient.isfinite().all()):
            return Answer(value.item(), gradient)
        scale /= 2


def reference_answer(model: nn.Module, loss: Any, batch: Batch, seed: int) -> Answer:
    """Loss and gradient of a float64 model on the CPU."""
    inputs, targets = (_double(part) for part in batch)
    seed_everything(seed)
    value = loss(model(inputs), targets)
    value.backward()
    return Answer(value.item(), _flat_gradient(model.parameters()))


def _double(part: Any) -> Any:
    """A floating-point tensor as float64. Labels stay; targets that are no tensor are for the reference's loss."""
    return part.double() if isinstance(part, Tensor) and part.is_floating_point() else part


def relative_error(got: Tensor, reference: Tensor) -> float:
    """||got - reference|| / ||reference||, or ||got|| where the reference is 0; NaN if either is not finite."""
    size = float(torch.linalg.vector_norm(reference))
    error = float(torch.linalg.vector_norm(got - reference))
    return error / size if size > 0 else error


def verdict_on(cases: list[Case], tolerance: Mapping[str, float]) -> dict[str, Any]:
    """The content of equivalence.json: `same` if every case lies within `tolerance`, else `differs`."""
    loss_error = _largest(case.loss_rel_err for case in cases)
    gradient_error = _largest(case.gradient_rel_err for case in cases)
    return {
        "status": "same" if all(case.within(tolerance) for case in cases) else "differs",
        "loss_rel_err": _finite(loss_error),
        "gradient_rel_err": _finite(gradient_error),
        "max_rel_err": _finite(_largest([loss_error, gradient_error])),
        "tolerance": {"loss": tolerance["loss"], "gradient": tolerance["gradient"]},
        "cases": [
            {
                "name": case.name,
                "loss": _finite(case.loss),
                "reference_loss": _finite(case.reference_loss),
                "loss_rel_err": _finite(case.loss_rel_err),
                "gradient_rel_err": _finite(case.gradient_rel_err),
            }
            for case in cases
        ],
    }


def _loss_of(config: DictConfig, device: torch.device) -> Any:
    loss = instantiate(config.loss, _convert_="all")
    return loss.to(device) if isinstance(loss, nn.Module) else loss


def _flat_gradient(parameters: Iterable[nn.Parameter]) -> Tensor:
    """All gradients as one float64 vector; zeros for a parameter that got none."""
    return torch.cat(
        [
            (torch.zeros_like(p) if p.grad is None else p.grad).detach().flatten().to("cpu", torch.float64)
            for p in parameters
        ]
    )


def _largest(errors: Iterable[float]) -> float:
    """The largest error, where NaN counts as larger than any number."""
    return max(errors, key=lambda error: math.inf if math.isnan(error) else error)


def _finite(value: float) -> float | None:
    """The value, or None for NaN and infinity, which JSON does not have."""
    return value if math.isfinite(value) else None


if __name__ == "__main__":
    sys.exit(main())
