"""The sampled utilisation of the GPU is high, although it idles after syncs."""

from collections.abc import Iterator
from typing import Annotated, Final

from steptrace.documents.base import field
from steptrace.documents.variant import VariantResult
from steptrace.findings.rule import BaseFigures, Match, Rule, Threshold, Words, advise, per_variant
from steptrace.findings.thresholds import SEVERE
from steptrace.format import duration, share

_HIGH: Final = Threshold(0.8, "ours: such a figure is commonly taken for a GPU that is well used")


class Figures(BaseFigures, frozen=True, kw_only=True):
    """The sampled utilisation beside the idle time that it does not show."""

    sampled_share: Annotated[float, field("NVML's utilisation over the unprofiled steps, as nvidia-smi shows it.")]
    sync_idle_share: Annotated[float, field("GPU idle time after syncs, as a share of the profiled steps.")]
    sync_idle_ns: Annotated[float, field("The same in a step.")]
    syncs: Annotated[float, field("Syncs in a step.")]


def _find(variant: VariantResult) -> Iterator[Match[Figures]]:
    trace = variant.trace
    sampled = variant.nvml_util_pct
    if trace is None or trace.overview is None or sampled is None or sampled / 100 < _HIGH.value:
        return
    idle = trace.syncs.exposed_idle_ns
    steps = trace.quality.steps
    window = trace.overview.window_ns
    if not idle or not steps or not window or idle / window < SEVERE.value:
        return
    yield Match(
        severity="warning",
        figures=Figures(
            sampled_share=sampled / 100,
            sync_idle_share=idle / window,
            sync_idle_ns=idle / steps,
            syncs=trace.syncs.per_step or 0.0,
        ),
    )


def _words(figures: Figures) -> Words:
    idle = duration(figures.sync_idle_ns)
    return Words(
        f"a sampled utilisation of {share(figures.sampled_share)} hides that the GPU idles after syncs for "
        f"{share(figures.sync_idle_share)} of a step",
        (
            f"NVML, sampled over unprofiled steps: {share(figures.sampled_share)}",
            f"idle between a sync and the next launched work: {idle} per step",
        ),
    )


RULE: Final = Rule(
    name="utilisation_hides_syncs",
    topic="waiting",
    figures=Figures,
    words=_words,
    in_study=per_variant(_find),
    condition="NVML's utilisation is at least {high}, and the GPU idles after syncs for {least} of the steps or more",
    thresholds={"high": _HIGH, "least": SEVERE},
    advice=advise("Judge the GPU's use by the trace: NVML counts a sampling period as busy if any kernel ran in it."),
    counter_check="Remove the syncs: the step gets shorter, while the sampled figure hardly moves.",
)
