"""The overview of a trace: in which number formats it computes and what takes the time."""

from steptrace import format as fmt
from steptrace.documents.summary import TraceSummary
from steptrace.report.page.definitions import definitions
from steptrace.report.page.overview import FORMAT_NAMES, formats_shown, operator_table
from steptrace.report.page.parts import Explained, Parts, subheading
from steptrace.report.page.table import named_facts

_TERMS = ("Overview.parts_ns",)
_OF_FORMATS = ("Precision.kernel_ns", "Precision.tensor_core_ns")


def overview(trace: TraceSummary) -> Parts:
    """Figures, and the operators that take most of the time."""
    formats = _precision(trace)
    terms = definitions([*_TERMS, *(_OF_FORMATS if formats else ())])
    parts = [Explained(named_facts(formats) if formats else "", terms)]
    if trace.overview is not None and trace.overview.operators:
        parts += [subheading("Top operators"), operator_table(trace.overview)]
    return parts


def _precision(trace: TraceSummary) -> list[tuple[str, str]]:
    of = trace.precision
    if of is None or not of.shares:
        return []
    figures = [(f"Kernel time, {FORMAT_NAMES[name]}", fmt.share(of.shares.get(name))) for name in formats_shown([of])]
    if of.tf32_share:
        figures.append(("32-bit kernel time in TF32", fmt.share(of.tf32_share)))
    if of.tensor_core_share is None:
        return figures
    unknown = of.tensor_core_unknown_share or 0
    note = f", {fmt.share(unknown)} unknown" if unknown >= 0.005 else ""
    return [*figures, ("Matrix products on tensor cores", f"{fmt.share(of.tensor_core_share)}{note}")]
