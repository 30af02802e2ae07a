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
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from hydra.utils import instantiate
from omegaconf import DictConfig
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd
from torch.utils._pytree import tree_flatten, tree_unflatten

from steptrace.errors import TrainError, code_of
from steptrace.files import write_versioned
from steptrace.train.loop import Batch, to_device
from steptrace.train.precision import Precision, prepared
from steptrace.train.setup import build_dataset, build_loss, collate_of, device_of, load_config, seed_everything
from steptrace.train.tolerance import Case, NetworkSize, gradient_tolerance, loss_tolerance, relative, verdict_on

EQUIVALENCE_FILE = "equivalence.json"

CPU: Final = torch.device("cpu")
#: A gradient scale is halved at most this often before its gradients count as not finite: from 2^16 down to 1.
_SCALE_BACKOFFS = 16


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit code (0 whether or not the variant differs)."""
    parser = argparse.ArgumentParser(description="Check a variant's loss and gradient against the float64 reference.")
    parser.add_argument("--config", type=Path, required=True, help="resolved config of the variant (YAML)")
    parser.add_argument("--reference", type=Path, required=True, help="resolved config of the study's reference")
    parser.add_argument("--out", type=Path, required=True, help="folder for equivalence.json")
    options = parser.parse_args(arguments)
    return code_of(lambda: _check(options))


def _check(options: argparse.Namespace) -> int:
    config, reference = load_config(options.config), load_config(options.reference)
    verdict = verdict_on([compare_on(config, reference, *case) for case in cases_of(config)])
    write_versioned(options.out / EQUIVALENCE_FILE, verdict)
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
            "loss": relative(got.loss, expected.loss),
            "gradient": relative_error(vector(got.gradient), vector(expected.gradient)),
            "predictions": relative_error(vector(got.predictions), vector(expected.predictions)),
            "parameters": relative_error(got.parameters.double(), expected.parameters),
        },
        tolerance={
            "loss": loss_tolerance(got.loss_dtype, terms) if given.loss is None else given.loss,
            "gradient": gradient_tolerance(got.loss_dtype, terms, dtype) if given.gradient is None else given.gradient,
            "predictions": size.predictions(dtype, precision.autocast_dtype or torch.float32, tf32=precision.tf32),
            "parameters": size.parameters(),
        },
    )


def relative_error(got: Tensor, reference: Tensor) -> float:
    """||got - reference|| / ||reference||, or ||got|| where the reference is 0; NaN if either is not finite."""
    size = float(torch.linalg.vector_norm(reference))
    error = float(torch.linalg.vector_norm(got - reference))
    return error / size if size > 0 else error


@dataclass(frozen=True)
class Outputs:
    """The variant's results, on the CPU: the loss, and the rest as one vector each.

    `parameters` is the gradient by the parameters in float32, given `gradient`, the one by the predictions.
    """

    loss: float
    loss_dtype: torch.dtype
    predictions: list[Tensor]
    gradient: list[Tensor]
    parameters: Tensor


def variant_outputs(model: nn.Module, loss: Any, precision: Precision, batch: Batch, seed: int) -> Outputs:
    """Loss and gradient as the training loop computes them, on the model's device and in its precision."""
    device = next(model.parameters()).device
    inputs, targets = to_device(batch, device)
    precision.apply()
    buffers = [buffer.clone() for buffer in model.buffers()]
    with precision.autocast(), same_dropout(model, seed):
        predictions, form = _predictions(model(inputs))
    # As GradScaler does: start high, and back off while the scaled gradient overflows.
    scale = 2.0**_SCALE_BACKOFFS if precision.grad_scaler else 1.0
    while True:
        value, gradient = _of_loss(loss, predictions, form, targets, precision=precision, scale=scale)
        if scale == 1.0 or all(bool(part.isfinite().all()) for part in gradient):
            break
        scale /= 2
    Precision(device.type, None, tf32=False, grad_scaler=False).apply()
    for buffer, before in zip(model.buffers(), buffers, strict=True):
        buffer.copy_(before)  # the reference runs only once
    with same_dropout(model, seed):
        exact, _ = _predictions(model(inputs))
    parameters = _of_parameters(model, exact, gradient)
    return Outputs(value.item(), value.dtype, _on_cpu(predictions), _on_cpu(gradient), parameters.float().cpu())


def reference_outputs(model: nn.Module, loss: Any, batch: Batch, variant: Outputs, seed: int) -> Outputs:
    """The same of a float64 model on the CPU, for the variant's predictions and their gradient."""
    inputs, targets = (_double(part) for part in batch)
    plain = Precision("cpu", None, tf32=False, grad_scaler=False)
    with same_dropout(model, seed):
        predictions, form = _predictions(model(inputs))
    if [part.shape for part in predictions] != [part.shape for part in variant.predictions]:
        raise TrainError(
            "the variant's and the reference's predictions have different shapes",
            where="model",
            expected=", ".join(str(tuple(part.shape)) for part in predictions),
        )
    value, gradient = _of_loss(loss, [part.double() for part in variant.predictions], form, targets, precision=plain)
    parameters = _of_parameters(model, predictions, [part.double() for part in variant.gradient])
    return Outputs(value.item(), value.dtype, _on_cpu(predictions), gradient, parameters)


def _predictions(output: Any) -> tuple[list[Tensor], Any]:
    """The floating-point tensors of a model's output, and its structure, from which `_of_loss` rebuilds it."""
    leaves, tree = tree_flatten(output)
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.is_floating_point()]
    if not tensors:
        raise TrainError(
            f"the model returns {type(output).__name__}, without a tensor to compare with the reference's",
            where="model",
            expected="a floating-point tensor, or lists, tuples and mappings of some",
        )
    return tensors, (leaves, tree)


def _of_loss(
    loss: Any, predictions: list[Tensor], form: Any, targets: Any, *, precision: Precision, scale: float = 1.0
) -> tuple[Tensor, list[Tensor]]:
    """The loss of given predictions, and its gradient by each of them."""
    own = [part.detach().requires_grad_() for part in predictions]
    rest = iter(own)
    leaves, tree = form
    put = [next(rest) if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf for leaf in leaves]
    with precision.autocast():
        value = loss(tree_unflatten(put, tree), targets)
    (value * scale).backward()
    gradient = [torch.zeros_like(part) if part.grad is None else part.grad for part in own]
    # Unscaled in float32: in 16 bits the values that the scale kept from underflow would underflow again.
    return value.detach(), [part.float() / scale for part in gradient] if scale != 1.0 else gradient


def _of_parameters(model: nn.Module, predictions: list[Tensor], gradient: list[Tensor]) -> Tensor:
    """The gradient by the parameters that follows from one by the predictions, as one vector."""
    model.zero_grad(set_to_none=True)
    given = [(part, by.to(part)) for part, by in zip(predictions, gradient, strict=True) if part.requires_grad]
    if given:
        torch.autograd.backward([part for part, _ in given], [by for _, by in given])
    return vector(torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters())


def _double(part: Any) -> Any:
    """A floating-point tensor as float64. Labels, and targets that are not tensors, stay as they are."""
    return part.double() if isinstance(part, Tensor) and part.is_floating_point() else part


def _on_cpu(parts: list[Tensor]) -> list[Tensor]:
    return [part.detach().cpu() for part in parts]


def vector(parts: Iterable[Tensor]) -> Tensor:
    """Tensors as one float64 vector on the CPU."""
    return torch.cat([part.detach().flatten().to("cpu", torch.float64) for part in parts])


@contextmanager
def same_dropout(model: nn.Module, seed: int) -> Generator[None]:
    """Seed all generators, and run dropout's draws on the CPU: they differ between devices and formats.

    Only PyTorch's dropout modules are covered; calls of the function `dropout` still draw on their own device.
    """
    seed_everything(seed)
    draw = torch.Generator().manual_seed(seed)
    modules = [
        module
        for module in model.modules()
        if isinstance(module, nn.Dropout | nn.Dropout1d | nn.Dropout2d | nn.Dropout3d)
    ]
    for module in modules:
        module.forward = partial(_dropped, module, draw)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for module in modules:
            del module.forward


def _dropped(module: _DropoutNd, draw: torch.Generator, values: Tensor) -> Tensor:
    if not module.training or module.p == 0:
        return values
    whole = values.ndim if isinstance(module, nn.Dropout) else 2  # the others drop channels
    shape = [length if axis < whole else 1 for axis, length in enumerate(values.shape)]
    kept = torch.rand(shape, generator=draw) >= module.p
    return values * kept.to(values.device) / (1 - module.p)


if __name__ == "__main__":
    sys.exit(main())
