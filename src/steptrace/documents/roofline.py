"""Figures of operators against the data sheet of the GPU they ran on."""

from typing import Annotated, Literal

from steptrace.documents.base import Row, column, described, field, key

#: The likely cause why the calls of an operator are slow.
SlowCause = Literal["misaligned_sizes", "strided_inputs", "small_calls", "few_blocks"]


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
        SlowCause | None,
        column(
            "Likely cause",
            "Misaligned sizes: the length of a 16-bit matrix's rows is no multiple of 8. Strided inputs have gaps or "
            "are broadcast. Small calls take less time than starting a kernel. Few blocks leave more than half of the "
            "GPU's multiprocessors idle.",
        ),
    ]
    flop: Annotated[float | None, field("FLOP of these calls, as the estimates count them.", kind="total")] = None
    tflop_per_s: Annotated[
        float | None,
        column("TFLOP/s", "Their FLOP / the GPU time; not measured of operators without products.", kind="mean"),
    ] = None
    bytes: Annotated[float | None, field("Bytes that they read and write.", kind="total")] = None
