"""What a step launches, copies and holds, and its sections timed each by itself."""

from steptrace import format as fmt
from steptrace.documents.comparison import Comparison
from steptrace.documents.step_figures import STEP_FIGURES
from steptrace.report.page import definitions as defs
from steptrace.report.page.markup import Html, render
from steptrace.report.study.model import measured


def launches(study: Comparison) -> Html:
    """The figures per step, bytes of a batch and of the peak; where measured, the synchronised sections."""
    cells = {variant.name: variant.synchronised_sections_ms or {} for variant in study.variants}
    labels = list(dict.fromkeys(label for found in cells.values() for label in found))
    times = [ms for found in cells.values() for ms in found.values()]
    times += [variant.step_ms.median for variant in measured(study) if variant.step_ms is not None]
    return render(
        "study/launches",
        study=study,
        has_bytes=any(variant.batch_bytes for variant in study.variants),
        labels=labels,
        unit=fmt.unit_for_ms(times),
        cells=cells,
        figures=[figure for figure in STEP_FIGURES if figure.needs_steps],  # the others stand in the table of variants
        terms=(*defs.LAUNCH_TERMS, "synchronised") if labels else defs.LAUNCH_TERMS,
    )
