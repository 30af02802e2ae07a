"""Inside the program: the modes of the probe, each a generator that is resumed at the end of each step.

`measure` runs the engine's phases and counts the memory that the program holds. `capture` waits for requests of a
trace. `record_outputs` records the loss and the gradients of the first steps. It keeps the norm of a gradient and its
projections on a few random sign vectors: they are small, and enough to estimate the distance of two gradients. The loss
is the sum over the step's backward passes, since a program that accumulates divides each loss by their number.
"""

import logging
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from steptrace.engine.compilations import LOG
from steptrace.engine.measure import Measurement, MeasureSettings
from steptrace.engine.memory import MemoryLook, modules_of
from steptrace.engine.rank_record import GradientOutputs, StepOutputs
from steptrace.engine.recording import RecordingSettings
from steptrace.engine.session import Phases
from steptrace.engine.signals import pass_on
from steptrace.engine.steps import Step
from steptrace.launch.capture import Listener
from steptrace.launch.memory_history import MemoryHistory
from steptrace.launch.probe import Probe

_LOG: Final = logging.getLogger("steptrace.memory")
#: Number of random vectors that a gradient is projected on.
PROJECTIONS: Final = 8
_SEED: Final = 0
#: Weights of fewer dimensions (biases, scales) do not count as a layer.
_MATRIX: Final = 2


def measure(probe: Probe) -> Phases:
    """Run warm-up, timed, profiled and watched steps. A program that joins the session runs its passes between them."""
    settings = probe.settings
    look: MemoryLook | None = None
    history = MemoryHistory(Path(settings.out)) if settings.memory_snapshot else None
    session = probe.open_session(explains=settings.profile > 0)

    def between(phase: str) -> None:
        nonlocal look
        if session.joined:
            session.phase_ended(phase)
        elif phase == "timed":
            probe.finder.settle()
            optimizers = probe.finder.live_optimizers
            look = MemoryLook(modules_of(optimizers), optimizers)
            probe.hooks.look = look
            try:
                look.note_held()
            except Exception as error:  # an optimizer's state may hold anything, and its timings must not be lost by it
                pass_on(error)
                _LOG.warning("the memory is not counted: %s: %s", type(error).__name__, error)
            probe.record |= {"memory": look.record, **measurement.record}
            probe.save("partial")

    def progress(phase: str, done: int, total: int) -> None:
        if phase != "timed" and done:
            probe.hooks.look = None  # it looks at one step only, the first after the timed ones
        # A program that has joined ends by itself. If it ends before its measurement is complete, its run has failed.
        if probe.progress(phase, done, total) and phase == "timed" and done and not session.joined:
            probe.record |= measurement.so_far()
            probe.save("partial")  # so the steps are kept however the program ends, even by SIGKILL

    window = None
    if settings.profile:
        window = RecordingSettings(
            steps=settings.profile,
            warmup=settings.profile_warmup,
            stacks=settings.stacks,
            shapes=settings.shapes,
            memory=settings.memory,
        )
    measured = MeasureSettings(Path(settings.out), settings.warmup, settings.steps, window, settings.at_most_s)
    measurement = Measurement(measured, session, label=probe.label, between=between, progress=progress)
    probe.on_begin = measurement.begin
    session.that_fit = measurement.that_fit
    try:
        yield from measurement.phases()
        if session.joined:
            session.phase_ended("all")
        elif look is not None:
            look.note_workspaces()
    finally:
        probe.record |= measurement.record | session.record
        if history is not None:
            history.write()


def capture(probe: Probe) -> Phases:
    """Listen until the program ends; the parts of a step are labelled only during a capture."""
    yield
    # Not before the first step: only programs that train can be captured, and the rank is known only now.
    steps_before = probe.steps - 1  # the loop below reports the step that ends now
    listener = Listener(probe.settings.captures, steps_before, LOG.record)
    try:
        while True:
            listener.step()
            probe.hooks.labels = listener.recording
            yield
    finally:
        listener.close()


def record_outputs(probe: Probe) -> Phases:
    """Record the loss and the gradients of each of the first steps."""
    gradients: list[GradientOutputs] = []
    steps: list[StepOutputs] = []
    probe.record["outputs"] = steps
    probe.hooks.before_update = lambda optimizer: gradients.append(_gradients(optimizer))
    autocast = _watch_autocast()
    for _ in range(probe.settings.steps):
        step = yield
        steps.append(_outputs(step, gradients, autocast))
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


def _outputs(step: Step, gradients: list[GradientOutputs], autocast: set[str]) -> StepOutputs:
    losses = [float(loss) for loss in step.losses]
    formats = sorted({str(loss.dtype).removeprefix("torch.") for loss in step.losses})
    return StepOutputs(
        loss=sum(losses) if losses else None,
        formats=(*formats, *(name for gradient in gradients for name in gradient.formats), *sorted(autocast)),
        samples=step.samples if step.batches else None,
        depth=sum(gradient.depth for gradient in gradients),
        terms=max((gradient.terms for gradient in gradients), default=1),
        gradients=tuple(gradients),
    )


def _gradients(optimizer: Any) -> GradientOutputs:
    """Norm and projections of an optimizer's gradients."""
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    values = [_whole(parameter.grad) for parameter in parameters]
    generator = torch.Generator().manual_seed(_SEED)
    sums = [0.0] * PROJECTIONS
    square = 0.0
    count = 0
    for value in values:
        square += float(value.square().sum())
        count += value.numel()
        for number in range(PROJECTIONS):
            signs = torch.randint(0, 2, value.shape, generator=generator, dtype=torch.int8).double() * 2 - 1
            sums[number] += float((signs * value).sum())
    return GradientOutputs(
        optimizer=type(optimizer).__name__,
        values=count,
        formats=tuple(sorted({str(parameter.grad.dtype).removeprefix("torch.") for parameter in parameters})),
        norm=square**0.5,
        depth=sum(parameter.ndim >= _MATRIX for parameter in parameters),
        terms=max((p.shape[1:].numel() for p in parameters if p.ndim >= _MATRIX), default=1),
        projections=tuple(sums),
    )


def _whole(gradient: Tensor) -> Tensor:
    """A gradient as one float64 vector on the CPU; for a distributed tensor, this rank's part."""
    local = (gradient.to_local() if hasattr(gradient, "to_local") else gradient).detach()
    values = local.coalesce().values() if local.is_sparse else local
    return values.double().cpu().flatten()
