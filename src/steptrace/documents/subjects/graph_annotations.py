"""GPU work inside CUDA graphs by the annotation that the program gave it while the graph was captured."""

from typing import Annotated, Final

from steptrace.documents.base import Row, column, described, field, key
from steptrace.documents.subject import TableSubject, subject


@described(
    """GPU work of CUDA graphs with one annotation.

    While a graph is captured, `torch.cuda.graph_annotations.mark_kernels` names regions of the program. Replays have
    neither operators nor Python frames, so this name is all that says where their work comes from. The 1,000 with most
    time have a row; all others together are the row "(others)".
    """
)
class GraphAnnotation(Row, frozen=True):
    annotation: Annotated[str, key("Annotation", "What the program called the region.")]
    count: Annotated[int, column("GPU activities", "How many, over all replays.", kind="total")]
    device_ns: Annotated[int, column("GPU time", "Their lengths, summed over streams.", kind="total")]
    longest_ns: Annotated[int, column("Longest one", "Length of the longest of them.", kind="max")]
    kernel: Annotated[str, field("Short name of the kernel that takes most of that time.", kind="first")]


SUBJECT: Final = TableSubject(
    "graph_annotations",
    GraphAnnotation,
    subject("CUDA graphs by annotation", None, "needs_gpu", "compared", after="modules"),
)
