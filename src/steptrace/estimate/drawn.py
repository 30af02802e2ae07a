"""A followed step, and what its kernels take in each draw of a GPU."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from steptrace.documents.estimate import (
    OperatorCalls,
    Uncovered,
)
from steptrace.estimate.queue import Collective, DrawnTimes, Item
from steptrace.estimate.times import Draws
from steptrace.estimate.work import Kernel

if TYPE_CHECKING:  # a program that asks for its own estimate has no msgspec
    pass


@dataclass(frozen=True)
class FollowedStep:
    """What a prediction recorded of the training steps that it followed.

    Attributes:
        operators: the calls of all `steps` steps together.
        steps: number of steps that were followed.
        syncs: predicted syncs per step.
        queue: the order of all calls and syncs, see `Syncs.queue`; empty if not known.
        batch: samples per step and GPU; None if not known.
        peak_memory_bytes: peak of the live storages; None if not followed.
        tf32: whether the program lets float32 products be computed in TF32.
        tf32_convolutions: the same for convolutions; PyTorch allows it by default.
        compiled: file and line of each call of torch.compile whose code was followed uncompiled.
        devices: number of GPUs that train together.
        items: the queue, in order, if it does not consist of `operators`: with compiled code it holds its kernels.
        uncompiled_queue: the order of `operators` if `items` replace them.
    """

    operators: Sequence[OperatorCalls]
    steps: int = 1
    syncs: float = 0
    queue: Sequence[int] = ()
    batch: int | None = None
    peak_memory_bytes: int | None = None
    tf32: bool = False
    tf32_convolutions: bool = True
    compiled: Sequence[tuple[str | None, int | None]] = ()
    devices: int = 1
    items: Sequence[Item] = ()
    uncompiled_queue: Sequence[int] = ()


@dataclass(frozen=True)
class LaunchedKernel:
    """A kernel of the step, how often a step runs it, and the operator that launches it; None in compiled code."""

    kernel: Kernel
    calls: float
    call: OperatorCalls | None


@dataclass(frozen=True)
class StepDraws:
    """A step on one GPU in every draw.

    Attributes:
        timeline: the times of one step.
        launched: the kernels of a step.
        seconds: the time of each kernel in each draw [kernels, draws].
        collectives: the collectives of all `steps` steps.
        steps: number of steps in the simulated queue.
    """

    timeline: DrawnTimes
    launched: Sequence[LaunchedKernel]
    seconds: Draws
    collectives: Sequence[Collective]
    steps: int


@dataclass(frozen=True)
class Work:
    """A kernel of the step, its median seconds per step, and why no rule covers it (None: one does)."""

    launched: LaunchedKernel
    seconds: float
    why: Uncovered | None
