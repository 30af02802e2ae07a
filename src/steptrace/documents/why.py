"""Why a step of a variant is shorter than its baseline's."""

from typing import Annotated, Final

from steptrace.documents.base import Document, field


class KernelSaving(Document, frozen=True):
    """A kernel that takes less time in a step of the variant."""

    name: Annotated[str, field("Short name of the kernel.")]
    ns: Annotated[float, field("How much less it takes in a step.")]


class Saving(Document, frozen=True):
    """A part of a step that takes another time than in the baseline."""

    part: Annotated[str, field("The part: a key of `Overview.parts_ns`.")]
    ns: Annotated[float, field("The difference in a step.")]
    kernels: Annotated[tuple[KernelSaving, ...], field("The kernels that account for it, the largest first.")]


#: From this share of the time saved on, the syncs that are gone are a reason.
_LEAST_BY_SYNCS: Final = 0.5


class Why(Document, frozen=True):
    """Where a step of a variant is shorter than its baseline's, by profiled steps without what the profiler added."""

    saved_ns: Annotated[float, field("How much shorter an unprofiled step is.")]
    shorter: Annotated[
        tuple[Saving, ...], field("The parts that take at least a tenth of that less, the largest first.")
    ]
    longer: Annotated[tuple[Saving, ...], field("The parts that take more time, by at least a tenth of that.")]
    syncs_ns: Annotated[
        float | None,
        field("What the syncs that are gone can have cost at most; null if not measured, or if none is gone."),
    ]

    @property
    def by_syncs(self) -> bool:
        """Whether the syncs that are gone may be a main reason: they may cost half of the time saved, or more."""
        # What was not measured rules nothing out.
        return self.syncs_ns is None or self.syncs_ns >= _LEAST_BY_SYNCS * self.saved_ns
