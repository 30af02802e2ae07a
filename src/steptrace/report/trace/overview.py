"""The overview of a trace: in which number formats it computes and what takes the time."""

from typing import Final

from steptrace import format as fmt
from steptrace.documents.overview import Overview, part_name
from steptrace.documents.summary import TraceSummary
from steptrace.report.page.definitions import definitions
from steptrace.report.page.parts import Explained, Parts, subheading
from steptrace.report.page.table import listing, named_facts

_TERMS: Final = ("Overview.parts_ns",)
_OF_FORMATS: Final = ("Precision.kernel_ns", "Precision.tensor_core_ns")
#: How many operators stand in an overview.
_MOST: Final = 6
#: A number format with less of the kernel time is left out, and so is what is unknown of the matrix products.
_SMALLEST_SHARE: Final = 0.005


def overview(trace: TraceSummary) -> Parts:
    """Figures, and the operators that take most of the time."""
    formats = _precision(trace)
    terms = definitions([*_TERMS, *(_OF_FORMATS if formats else ())])
    parts = [Explained(named_facts(formats) if formats else "", terms)]
    if trace.overview is not None and trace.overview.operators:
        parts += [subheading("Top operators"), operator_table(trace.overview)]
    return parts


def operator_table(overview: Overview) -> Explained:
    """The operators with the most time; at least one."""
    on_device = any(row.device_self_ns for row in overview.operators)
    columns = ("name", "calls", *(["device_self_ns"] if on_device else []), "host_self_ns", "share")
    return listing(overview.operators[:_MOST], columns, steps=overview.steps)


def _precision(trace: TraceSummary) -> list[tuple[str, str]]:
    of = trace.precision
    if of is None:
        return []
    shown = {name: share for name, share in of.shares.items() if share >= _SMALLEST_SHARE}
    figures = [(f"Kernel time, {part_name(name)}", fmt.share(share)) for name, share in shown.items()]
    if of.tf32_share:
        figures.append(("32-bit kernel time in TF32", fmt.share(of.tf32_share)))
    if of.tensor_core_share is None:
        return figures
    unknown = of.tensor_core_unknown_share or 0
    note = f", {fmt.share(unknown)} unknown" if unknown >= _SMALLEST_SHARE else ""
    return [*figures, ("Matrix products on tensor cores", f"{fmt.share(of.tensor_core_share)}{note}")]
