"""Inside the program: records the loss and the gradients of its first steps.

A gradient is recorded as its norm and its projections on a few random sign vectors: small, and enough to estimate the
distance of two gradients. The loss is the sum over the step's backward passes: a program that accumulates divides each
by their number.
"""

from typing import Any, Final

import torch
from torch import Tensor

from steptrace.engine.measure import Phases
from steptrace.engine.steps import Step
from steptrace.launch.probe import Probe

#: Number of random vectors that a gradient is projected on.
PROJECTIONS: Final = 8
_SEED: Final = 0
#: Weights of fewer dimensions (biases, scales) do not count as a layer.
_MATRIX: Final = 2


def record_outputs(probe: Probe) -> Phases:
    """Record each of the first steps."""
    gradients: list[dict[str, Any]] = []
    probe.record["outputs"] = steps = []
    probe.hooks.before_update = lambda optimizer: gradients.append(_gradients(optimizer))
    autocast = _watch_autocast()
    for _ in range(probe.settings.steps):
        step = yield
        steps.append(_outputs(step, gradients))
        steps[-1]["formats"] += sorted(autocast)
        gradients.clear()


def _watch_autocast() -> set[str]:
    """A set that collects the number formats of the program's autocast from now on."""
    formats: set[str] = set()
    owner = torch.amp.autocast_mode.autocast
    enter = owner.__enter__

    def __enter__(self: Any) -> Any:  # noqa: N807
        if self._enabled:
            formats.add(str(self.fast_dtype).removeprefix("torch."))
        return enter(self)  # type: ignore[no-untyped-call]

    owner.__enter__ = __enter__  # type: ignore[method-assign]
    return formats


def _outputs(step: Step, gradients: list[dict[str, Any]]) -> dict[str, Any]:
    losses = [float(loss) for loss in step.losses]
    formats = sorted({str(loss.dtype).removeprefix("torch.") for loss in step.losses})
    return {
        "loss": sum(losses) if losses else None,
        "formats": formats + [name for gradient in gradients for name in gradient["formats"]],
        "samples": step.samples if step.batches else None,
        "depth": sum(gradient["depth"] for gradient in gradients),
        "terms": max((gradient["terms"] for gradient in gradients), default=1),
        "gradients": list(gradients),
    }


def _gradients(optimizer: Any) -> dict[str, Any]:
    """Norm and projections of an optimizer's gradients."""
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    values = [_whole(parameter.grad) for parameter in parameters]
    generator = torch.Generator().manual_seed(_SEED)
    sums, square, count = [0.0] * PROJECTIONS, 0.0, 0
    for value in values:
        square += float(value.square().sum())
        count += value.numel()
        for number in range(PROJECTIONS):
            signs = torch.randint(0, 2, value.shape, generator=generator, dtype=torch.int8).double() * 2 - 1
            sums[number] += float((signs * value).sum())
    return {
        "optimizer": type(optimizer).__name__,
        "values": count,
        "formats": sorted({str(parameter.grad.dtype).removeprefix("torch.") for parameter in parameters}),
        "norm": square**0.5,
        "depth": sum(parameter.ndim >= _MATRIX for parameter in parameters),
        "terms": max((p.shape[1:].numel() for p in parameters if p.ndim >= _MATRIX), default=1),
        "projections": sums,
    }


def _whole(gradient: Tensor) -> Tensor:
    """A gradient as one float64 vector on the CPU; for a distributed tensor, this rank's part."""
    local = (gradient.to_local() if hasattr(gradient, "to_local") else gradient).detach()
    values = local.coalesce().values() if local.is_sparse else local
    return values.double().cpu().flatten()
