"""A step waits for its data: in the profiled steps of a trace, or in the unprofiled steps of a variant."""

from collections.abc import Iterator
from typing import Annotated, Final, Literal

from steptrace.documents.base import field
from steptrace.documents.comparison import Comparison
from steptrace.documents.step_times import Statistic
from steptrace.documents.variant import VariantResult
from steptrace.findings.rule import BaseFigures, Match, Rule, Words, advise
from steptrace.findings.thresholds import DATA_HIGH, DATA_MODERATE
from steptrace.findings.window import Window
from steptrace.format import NS_PER_MS, duration, duration_ms, share
from steptrace.limits import NOISE_FLOOR

#: What the times are means of: the profiled steps of a trace, the whole of a trace without steps, or unprofiled steps.
_Basis = Literal["profiled_steps", "trace", "unprofiled_steps", "unprofiled_steps_of_runs"]


class Figures(BaseFigures, frozen=True, kw_only=True):
    """Waiting for data in a mean step."""

    basis: Annotated[_Basis, field("Which steps the times are means of.")]
    wait_ns: Annotated[float, field("Host time in the loader's next batch.")]
    counted_ns: Annotated[float, field("The part that counts: with a GPU, only the time in which the GPU is idle.")]
    share: Annotated[float, field("What counts, as a share of the step.")]
    step_ns: Annotated[float, field("Length of the step.")]
    on_gpu: Annotated[bool, field("Whether a GPU ran, so that only its idle time counts.")]
    step_time_ms: Annotated[
        float | None, field("The variant's step time, if it is another than the mean step here.")
    ] = None
    step_time_is: Annotated[Statistic | None, field("What that step time is.")] = None
    cores_taken: Annotated[bool, field("Whether the loader has a worker for every core already.")] = False


def _find(figures: Figures | None, variant: str | None = None) -> Iterator[Match[Figures]]:
    if figures is None or figures.share < DATA_MODERATE.value:
        return
    yield Match(
        severity="high" if figures.share >= DATA_HIGH.value else "warning",
        figures=figures,
        cost_ns_per_step=figures.counted_ns,
        cost_share=figures.share,
        variant=variant,
    )


def _in_trace(window: Window) -> Iterator[Match[Figures]]:
    waits = window.entry.input
    on_gpu = waits.gpu_idle_wait_ns is not None
    if waits.share is None:
        return
    if waits.unprofiled_wait_ns is not None and waits.unprofiled_step_ns is not None:
        yield from _find(
            Figures(
                basis="unprofiled_steps",
                wait_ns=waits.unprofiled_wait_ns,
                counted_ns=waits.share * waits.unprofiled_step_ns,
                share=waits.share,
                step_ns=waits.unprofiled_step_ns,
                on_gpu=on_gpu,
            )
        )
    elif waits.wait_ns is not None and waits.counted_ns is not None:
        yield from _find(
            Figures(
                basis="profiled_steps" if window.steps else "trace",
                wait_ns=window.per_step(waits.wait_ns),
                counted_ns=window.per_step(waits.counted_ns),
                share=waits.share,
                step_ns=window.per_step(waits.window_ns),
                on_gpu=on_gpu,
            )
        )


def _in_study(study: Comparison) -> Iterator[Match[Figures]]:
    for variant in study.variants:
        yield from _find(_figures_of(study, variant), variant.name)


def _figures_of(study: Comparison, variant: VariantResult) -> Figures | None:
    """A variant's waiting in its unprofiled steps; None where that was not measured."""
    waits = variant.input
    times = variant.step_ms
    if waits is None or waits.share is None:
        return None
    if waits.wait_ms is None or waits.counted_ms is None or waits.step_ms is None:
        return None
    # The table's step time averages the runs in another way. Where the two differ, both are named.
    differs = times is not None and abs(waits.step_ms - times.value) > NOISE_FLOOR * times.value
    return Figures(
        basis="unprofiled_steps_of_runs" if times is not None and times.runs > 1 else "unprofiled_steps",
        wait_ns=waits.wait_ms * NS_PER_MS,
        counted_ns=waits.counted_ms * NS_PER_MS,
        share=waits.share,
        step_ns=waits.step_ms * NS_PER_MS,
        on_gpu=waits.idle_part is not None,
        step_time_ms=times.value if times is not None and differs else None,
        step_time_is=times.statistic if times is not None and differs else None,
        cores_taken=_cores_taken(study, variant),
    )


def _cores_taken(study: Comparison, variant: VariantResult) -> bool:
    """Whether the loader has as many workers as there are cores."""
    workers = None if variant.input is None else variant.input.workers
    return workers is not None and study.environment is not None and workers >= study.environment.cpu_count


_PER: Final[dict[_Basis, str]] = {
    "profiled_steps": "per step",
    "trace": "in the whole trace",
    "unprofiled_steps": "per unprofiled step, mean",
    "unprofiled_steps_of_runs": "per unprofiled step, mean (medians of the runs)",
}


def _words(figures: Figures) -> Words:
    idle = f", {duration(figures.counted_ns)} of it with the GPU idle" if figures.on_gpu else ""
    evidence = [f"{duration(figures.wait_ns)} of {duration(figures.step_ns)} {_PER[figures.basis]}{idle}"]
    if figures.step_time_ms is not None:
        evidence.append(
            f"the step time, {duration_ms(figures.step_time_ms)}, is the {figures.step_time_is} of all runs' steps"
        )
    claim = f"{share(figures.share)} of the step is waiting for the data loader"
    return Words(
        claim + (", the GPU idle meanwhile" if figures.on_gpu else ""),
        tuple(evidence),
        advice=_NO_CORES if figures.cores_taken else (),
    )


_NO_CORES: Final = advise(
    "Give the loader's workers less to do: decode beforehand, make a sample cheaper, or decode on the GPU.",
    "There is a worker for every core, so more workers gain nothing.",
)

RULE: Final = Rule(
    name="input_bound",
    topic="data",
    figures=Figures,
    words=_words,
    in_trace=_in_trace,
    in_study=_in_study,
    condition="waiting for the loader takes at least {least} of the step; severe from {high} on. Where there is a GPU, "
    "only the time in which it is idle counts",
    thresholds={"least": DATA_MODERATE, "high": DATA_HIGH},
    advice=advise(
        "If cores are free, give the loader more workers (`DataLoader(num_workers=..., persistent_workers=True)`).",
        "If no core is free, give the workers less to do: decode beforehand, make a sample cheaper, or decode on "
        "the GPU.",
    ),
    counter_check="Run some steps on a few batches kept in memory: their step time is that of a perfect loader.",
    study="input_pipeline",
)
