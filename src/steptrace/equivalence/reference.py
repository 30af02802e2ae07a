"""Compares a variant with the study's float64 reference, which computes on the CPU, batch by batch.

The computation is a chain. Each link is checked separately, on inputs that variant and reference share:

- the *loss* and its *gradient by the predictions*, on the variant's predictions, used by the reference as they are;
- the network: its *predictions*, and in float32 the *gradient by its parameters* that follows from the same gradient by
  the predictions.

The gradient by the parameters as a whole cannot be checked in 16 bits: a ReLU, a maximum or a clamp so near its kink
that rounding decides the side changes it by any amount, in correct variants, too. In the study `giou` one of 128 hidden
units on the other side of 0 changes it by 42 %. Predictions are continuous at a kink, and with shared predictions the
loss's own kinks are at the same place. The rounding of a 16-bit backward pass is not checked.
"""

from collections.abc import Iterator
from typing import Any, Final

import torch
from hydra.utils import instantiate
from torch import Tensor, nn

from steptrace.config.schema import RootConfig
from steptrace.equivalence.outputs import (
    Outputs,
    gradient_by_parameters,
    loss_and_gradient,
    on_cpu,
    output_tensors,
    relative_error,
    same_dropout,
    variant_outputs,
    vector,
)
from steptrace.equivalence.tolerance import NetworkSize, gradient_tolerance, loss_tolerance
from steptrace.equivalence.verdict import Case, relative
from steptrace.errors import TrainError
from steptrace.lab.loop import Batch
from steptrace.lab.precision import NumberFormats, prepared
from steptrace.lab.setup import build_dataset, build_loss, collate_of, device_of, seed_everything

CPU: Final = torch.device("cpu")


def cases_of(config: RootConfig) -> Iterator[tuple[str, int, Batch]]:
    """Name, seed of the weights, and batch of every case: one per seed, then the data set's edge cases, if any."""
    seeds = config.equivalence.seeds
    for seed in seeds:
        dataset: Any = build_dataset(config, seed)
        samples = [dataset[i % len(dataset)] for i in range(config.equivalence.batch_size)]
        yield f"seed {seed}", seed, tuple(collate_of(dataset)(samples))
    dataset = build_dataset(config, seeds[0])
    if hasattr(dataset, "edge_cases"):
        for number, batch in enumerate(dataset.edge_cases(), start=1):
            yield f"edge case {number}", seeds[0], batch


def compare_on(
    config: RootConfig,
    reference: RootConfig,
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
    size = NetworkSize.from_model(model)
    device = device_of(config)
    precision = NumberFormats.from_config(config.precision, device.type)
    model = prepared(model.to(device), config.step)
    got = variant_outputs(model, build_loss(config, device), precision, batch, seed)
    with size.watched(reference_model):
        expected = reference_outputs(reference_model.double(), build_loss(reference, CPU), batch, got, seed)
    terms = sum(part.numel() for part in got.predictions)
    dtype = got.predictions[0].dtype
    limits = config.precision.tolerance
    return Case(
        name=name,
        loss=got.loss,
        reference_loss=expected.loss,
        errors={
            "loss": relative(got.loss, expected.loss),
            "gradient": relative_error(vector(got.gradient), vector(expected.gradient)),
            "predictions": relative_error(vector(got.predictions), vector(expected.predictions)),
            "parameters": relative_error(got.parameters.double(), expected.parameters),
        },
        tolerance={
            "loss": loss_tolerance(got.loss_dtype, terms) if limits.loss is None else limits.loss,
            "gradient": gradient_tolerance(got.loss_dtype, terms, dtype)
            if limits.gradient is None
            else limits.gradient,
            "predictions": size.predictions(dtype, precision.autocast_dtype or torch.float32, tf32=precision.tf32),
            "parameters": size.parameters(),
        },
    )


def reference_outputs(model: nn.Module, loss: Any, batch: Batch, variant: Outputs, seed: int) -> Outputs:
    """The outputs of a float64 model on the CPU; loss and gradients are those at the variant's predictions."""
    inputs, targets = (_double(part) for part in batch)
    plain = NumberFormats("cpu", None, tf32=False, grad_scaler=False)
    with same_dropout(model, seed):
        predictions, form = output_tensors(model(inputs))
    if [part.shape for part in predictions] != [part.shape for part in variant.predictions]:
        raise TrainError(
            "the variant's and the reference's predictions have different shapes",
            where="model",
            expected=", ".join(str(tuple(part.shape)) for part in predictions),
        )
    shared = [part.double() for part in variant.predictions]
    value, gradient = loss_and_gradient(loss, shared, form, targets, precision=plain)
    parameters = gradient_by_parameters(model, predictions, [part.double() for part in variant.gradient])
    return Outputs(value.item(), value.dtype, on_cpu(predictions), gradient, parameters)


def _double(part: Any) -> Any:
    """A part of a batch; a floating-point tensor becomes float64, anything else stays as it is."""
    return part.double() if isinstance(part, Tensor) and part.is_floating_point() else part
