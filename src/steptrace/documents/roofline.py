"""Figures of operators against the data sheet of the GPU they ran on."""

from typing import Annotated

from steptrace.documents.base import Row, column, described, key


@described(
    """The calls of one operator with the same inputs, on the analysed GPU.

    Above 100 % of roofline its inputs were still in the GPU's cache, or the trace does not say its number format.
    """
)
class OperatorRoofline(Row, frozen=True):
    name: Annotated[str, key("Operator", "The operator that launched the kernels.")]
    inputs: Annotated[str, key("Inputs", "Sizes and types of its inputs.")]
    count: Annotated[int, column("Calls", "Calls that launched something.", kind="total")]
    ns: Annotated[int, column("GPU time", "Time of their kernels.", kind="total")]
    ideal_ns: Annotated[int, column("Ideal", "Their time at the data sheet's arithmetic or bandwidth.", kind="total")]
    roofline_pct: Annotated[float, column("Of roofline", "Ideal in percent of the GPU time.", kind="share")]
    slowest_ns: Annotated[
        int, column("Expected at most", "The upper end of the estimate for such operators.", kind="total")
    ]
    because: Annotated[
        str,
        column(
            "Likely cause",
            "Sizes: the length of a 16-bit matrix's rows is no multiple of 8; strided inputs have gaps or are "
            "broadcast; too little work takes less time than starting a kernel; few blocks leave more than half of the "
            "GPU's multiprocessors idle.",
        ),
    ]
