"""A prediction: what was counted, frozen, in the form in which the probe leaves it."""

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import torch

from steptrace.documents.compiled import CompiledStep
from steptrace.documents.estimate import OperatorCalls
from steptrace.engine.step_counters import AwaitedBranch, StepBranch
from steptrace.estimate.driver import USUAL
from steptrace.predict.backend import machine
from steptrace.predict.counted_places import Assumed, EarlyRead, Site, Unknown, named_as_in_trace

if TYPE_CHECKING:
    from steptrace.documents.prediction import PredictedStep


class Counts(Protocol):
    """What a prediction is frozen from. `steptrace.predict.syncs.Syncs` has it, and says what each figure means."""

    @property
    def total(self) -> int: ...  # noqa: D102
    @property
    def sites(self) -> list[Site]: ...  # noqa: D102
    @property
    def unknown(self) -> list[Unknown]: ...  # noqa: D102
    @property
    def assumed(self) -> list[Assumed]: ...  # noqa: D102
    @property
    def early_reads(self) -> list[EarlyRead]: ...  # noqa: D102
    @property
    def operators_per_label(self) -> dict[str, int]: ...  # noqa: D102
    @property
    def operator_total(self) -> int: ...  # noqa: D102
    @property
    def operators(self) -> tuple[OperatorCalls, ...]: ...  # noqa: D102
    @property
    def queue(self) -> tuple[int, ...]: ...  # noqa: D102
    @property
    def peak_memory_bytes(self) -> int: ...  # noqa: D102
    @property
    def compiled(self) -> CompiledStep | None: ...  # noqa: D102
    def by_step(self) -> tuple[int, ...]: ...  # noqa: D102


@dataclass(frozen=True)
class Prediction:
    """What was counted so far. All counts are sums over all followed steps.

    `steptrace.documents.probe.Prediction` is the same for its readers.

    `batch_size` is that of a config; None for a function. `queue`: see `Syncs.queue`. `devices`: the number of GPUs
    that train together, of a config. `tf32`, `tf32_convolutions`: whether float32 products, and convolutions, may use
    TF32. `gpu`: the GPU that the program sees.
    """

    total: int
    sites: tuple[Site, ...]
    unknown: tuple[Unknown, ...]
    operators_per_section: dict[str, int]
    operators: int
    assumed: tuple[Assumed, ...] = ()
    early_reads: tuple[EarlyRead, ...] = ()
    peak_memory_bytes: int | None = None
    batch_size: int | None = None
    operator_calls: tuple[OperatorCalls, ...] = ()
    queue: tuple[int, ...] = ()
    compiled: CompiledStep | None = None
    devices: int = 1
    tf32: bool = False
    tf32_convolutions: bool = True
    gpu: str = USUAL
    #: Syncs of each step, and of each before those that were followed; empty where steps are not told apart.
    by_step: tuple[int, ...] = ()
    warmup_by_step: tuple[int, ...] = ()
    #: The lines at which the program branches on a step counter.
    branches: tuple[StepBranch, ...] = ()
    #: The lines at which it waits for its step counter, and that were not taken.
    awaited: tuple[AwaitedBranch, ...] = ()

    @classmethod
    def so_far(cls, syncs: Counts) -> "Prediction":
        """Freeze what has been predicted so far, naming files as a trace of the program does."""
        return cls(
            total=syncs.total,
            sites=tuple(named_as_in_trace(site) for site in syncs.sites),
            unknown=tuple(named_as_in_trace(unknown) for unknown in syncs.unknown),
            operators_per_section=syncs.operators_per_label,
            operators=syncs.operator_total,
            assumed=tuple(named_as_in_trace(place) for place in syncs.assumed),
            early_reads=tuple(named_as_in_trace(place) for place in syncs.early_reads),
            peak_memory_bytes=syncs.peak_memory_bytes,
            operator_calls=syncs.operators,
            queue=syncs.queue,
            # The older switches (`allow_tf32`) raise once a program has used the newer ones, which know of both.
            tf32=torch.backends.cuda.matmul.fp32_precision == "tf32",
            tf32_convolutions=torch.backends.cudnn.conv.fp32_precision == "tf32",  # type: ignore[attr-defined]
            gpu=machine.driver.gpu,
            compiled=syncs.compiled,
        )

    def to_json(self) -> dict[str, Any]:
        """Plain data, as the probe leaves it."""
        branches = [branch._asdict() for branch in self.branches]
        return {**asdict(self), "branches": branches, "awaited": [branch._asdict() for branch in self.awaited]}


def predicted(syncs: Counts) -> "PredictedStep":
    """The prediction so far, as prediction.json has it; counts are per step if `step_ends` was called."""
    from steptrace.documents import probe
    from steptrace.documents.base import convert
    from steptrace.documents.prediction import predicted_step

    followed = replace(Prediction.so_far(syncs), by_step=syncs.by_step())
    return predicted_step([convert(followed.to_json(), probe.Prediction)])
