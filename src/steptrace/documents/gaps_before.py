"""Figures of gaps by kernel: before which kernels the GPU waits."""

from typing import Annotated

from steptrace.documents.base import Document
from steptrace.documents.column import column, key


class GapBefore(Document, frozen=True):
    """The activities of one name on the analysed GPU, and the gaps of the whole GPU that they end."""

    name: Annotated[str, key("Kernel", "Short name of the activities.")]
    count: Annotated[int, column("Calls", "Activities of the name.", total=True)]
    gaps: Annotated[int, column("Gaps", "Of these, before how many the whole GPU was idle.", total=True)]
    gap_ns: Annotated[int, column("Idle before", "The GPU's idle time that they end.", total=True)]
    longest_ns: Annotated[int, column("Longest gap", "The longest gap before one of them.")]
    ns: Annotated[int, column("Time", "Summed length of the activities themselves.", total=True)]
