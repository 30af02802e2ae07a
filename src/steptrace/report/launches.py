"""What a step launches, copies and holds, and its sections timed each by itself."""

from steptrace.report import definitions as defs
from steptrace.report import format as fmt
from steptrace.report.markup import Html, render
from steptrace.report.model import Study


def launches(study: Study) -> Html:
    """Operators and kernels per step, bytes of a batch and of the peak; where measured, the synchronised sections."""
    labels = list(dict.fromkeys(part.label for variant in study.variants for part in variant.synchronised))
    times = [part.ms for variant in study.variants for part in variant.synchronised]
    times += [variant.step.median for variant in study.measured if variant.step is not None]
    return render(
        "launches",
        study=study,
        has_bytes=any(variant.batch_bytes for variant in study.variants),
        labels=labels,
        unit=fmt.unit_for_ms(times),
        cells={variant.name: {part.label: part.ms for part in variant.synchronised} for variant in study.variants},
        terms=defs.definitions(defs.LAUNCH_TERMS if labels else defs.LAUNCH_TERMS[:2]),
    )
