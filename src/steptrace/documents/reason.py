"""Why a step takes as long as it does, as one code with figures. A page says it right after its answer."""

from dataclasses import dataclass
from typing import Literal

from steptrace.documents.idle import HostActivity

#: The largest part of a step's time: kernels, exposed communication, exposed copies, a wait of the GPU (for data, after
#: syncs, for a host that launches too slowly, between kernels, for another stream), or, without a GPU, a part of the
#: step on the host.
ReasonKind = Literal["kernels", "communication", "copies", "data", "syncs", "host", "gaps", "dependency", "host_part"]


@dataclass(frozen=True)
class Reason:
    """The largest part of a step, and what it is mostly made of. What is not known is None.

    Attributes:
        kind: the part.
        share: its share of the step, or of a trace without steps; 0 to 1.
        per_step: whether figures are for a step; else of the whole trace.
        name: the kernel, collective, operator or part of the step that takes most of it.
        name_share: the share of the step that this takes; of an operator, of all operators' host time.
        overlaps: whether kernels of its class overlap in time; then `name_share` is of their summed time instead.
        file, line: the line of the program that causes most of it.
        after_syncs: of a host that launches too slowly, the share of the step that the GPU is idle after syncs; 0 to 1.
        syncs_cost: the share of the step that these syncs cost at most; 0 to 1.
        meanwhile: what the host mostly does while the GPU waits for its launches.
        kernels: kernels in a step.
        step_ns, busy_ns: length of a step, and of the GPU's work in it.
        wait_share: of exposed communication, the share that is waiting for other ranks.
    """

    kind: ReasonKind
    share: float
    per_step: bool
    name: str | None = None
    name_share: float | None = None
    overlaps: bool = False
    file: str | None = None
    line: int | None = None
    after_syncs: float = 0.0
    syncs_cost: float = 0.0
    meanwhile: HostActivity | None = None
    kernels: float | None = None
    step_ns: float = 0.0
    busy_ns: float | None = None
    wait_share: float | None = None
