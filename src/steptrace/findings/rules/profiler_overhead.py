"""The profiler makes a variant's steps clearly longer."""

from collections.abc import Iterator
from typing import Annotated, Final

from steptrace.documents.base import field
from steptrace.documents.variant import VariantResult
from steptrace.findings.rule import BaseFigures, Match, Rule, Threshold, Words, advise, per_variant
from steptrace.format import factor
from steptrace.limits import PROFILER_OVERHEAD

_MOST: Final = Threshold(PROFILER_OVERHEAD, "ours: above it, the profiler distorts the trace's figures", unit="")


class Figures(BaseFigures, frozen=True, kw_only=True):
    """The cost of profiling."""

    profiled_over_unprofiled: Annotated[float, field("Median profiled step over median timed step.")]


def _find(variant: VariantResult) -> Iterator[Match[Figures]]:
    ratio = variant.profiled_over_unprofiled
    if ratio is not None and ratio > _MOST.value:
        yield Match(severity="warning", figures=Figures(profiled_over_unprofiled=ratio))


def _words(figures: Figures) -> Words:
    ratio = figures.profiled_over_unprofiled
    return Words(
        f"a profiled step takes {factor(ratio)} times as long as an unprofiled one",
        (f"median profiled step over median timed step: {factor(ratio, decimals=3)}",),
    )


RULE: Final = Rule(
    name="profiler_overhead",
    topic="method",
    figures=Figures,
    words=_words,
    in_study=per_variant(_find),
    condition="profiled over unprofiled step time is above {most}",
    thresholds={"most": _MOST},
    advice=advise(
        "Compare durations of unprofiled steps only; switch off `profile.with_stack` or `record_shapes` where they are "
        "on."
    ),
    counter_check="Profile with fewer options: shares that stay the same can be trusted.",
)
