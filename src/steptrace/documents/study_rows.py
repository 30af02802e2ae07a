"""The rows of the DataFrames that `steptrace.load_study` offers: its figures of comparison.json, flat."""

from typing import Annotated

from steptrace.documents.base import Document, field
from steptrace.documents.estimate import Limit
from steptrace.documents.run import StepOfRun


class OfVariant(Document, frozen=True, kw_only=True):
    """A row of a variant."""

    variant: Annotated[str, field("Name of the variant.")]


class VariantTimes(OfVariant, frozen=True, kw_only=True):
    """The unprofiled step time of a variant."""

    status: Annotated[str, field("How its runs ended: `ok`, `failed`, `killed`, `out of memory` or `not run`.")]
    step_ms: Annotated[float | None, field("Step time over all runs.")]
    low_ms: Annotated[float | None, field("Low end of its 95 % interval.")]
    high_ms: Annotated[float | None, field("High end of it.")]
    p95_ms: Annotated[float | None, field("95 % of the steps are shorter.")]
    runs: Annotated[int, field("Runs that were timed.")]
    steps: Annotated[int, field("Steps that were timed, in all runs together.")]
    ratio: Annotated[float | None, field("Baseline's step time over this one: above 1 is faster.")]
    ratio_low: Annotated[float | None, field("Low end of the ratio's 95 % interval.")]
    ratio_high: Annotated[float | None, field("High end of it.")]
    verdict: Annotated[str | None, field("What the interval says: `faster`, `slower`, or that it cannot tell.")]
    equivalence: Annotated[str, field("Whether loss and gradient agree with the float64 reference.")]
    samples_per_s: Annotated[float | None, field("Samples per second, all ranks together.")]
    ratio_per_sample: Annotated[
        float | None,
        field("Baseline's time per sample over this one, where batches differ; `verdict` is then about this ratio."),
    ]


class StudyStep(StepOfRun, frozen=True, kw_only=True):
    """One step of one run of a variant: its row of steps.parquet."""

    variant: Annotated[str, field("Name of the variant.")]
    run: Annotated[int, field("Number of the run, from 0.")]
    step_ms: Annotated[float, field("Its time: `step_ns` in milliseconds.")]


class VariantSyncs(OfVariant, frozen=True, kw_only=True):
    """Syncs per step of a variant by three sources."""

    measured_per_step: Annotated[float | None, field("Found in the trace of a GPU.")]
    predicted_per_step: Annotated[float | None, field("Predicted without a GPU.")]
    warned_per_step: Annotated[float | None, field("Warned of by PyTorch's own check.")]
    not_judged: Annotated[float | None, field("Operations that the prediction does not cover.")]


class VariantSite(OfVariant, frozen=True, kw_only=True):
    """A line that syncs."""

    basis: Annotated[str, field("`measured`, or `predicted` where nothing was measured.")]
    file: Annotated[str | None, field("File of the line.")]
    line: Annotated[int | None, field("Line in it; for backward work the line of the forward operator.")]
    operator: Annotated[str | None, field("Innermost operator.")]
    kind: Annotated[str | None, field("The call that waits, or `d2h_copy`, `h2d_copy`.")]
    count_per_step: Annotated[float | None, field("Syncs per step, a mean over the steps.")]
    code: Annotated[str | None, field("Text of the line.")]


class VariantGpuUse(OfVariant, frozen=True, kw_only=True):
    """GPU utilisation of a variant in its three senses."""

    busy_pct: Annotated[float | None, field("Share of the traced steps in which a kernel or copy runs.")]
    nvml_pct: Annotated[float | None, field("nvidia-smi's figure over the unprofiled steps, sampled by NVML.")]
    sm_weighted_pct: Annotated[float | None, field("Kernel time weighted by the share of multiprocessors it uses.")]
    joules_per_step: Annotated[float | None, field("Energy of a step: power of the GPU by NVML, times the step time.")]
    traced_steps: Annotated[int, field("Steps in the trace.")]


class VariantEstimate(OfVariant, frozen=True, kw_only=True):
    """A variant's step on a GPU that is not there: a band, never a measurement."""

    gpu: Annotated[str, field("Name of the GPU.")]
    low_ms: Annotated[float | None, field("Low end of the step time: 5 % of the possible GPUs are faster.")]
    high_ms: Annotated[float | None, field("High end: 95 % of them are faster.")]
    saved_low_ms: Annotated[
        float | None, field("Low end of what it saves against its baseline on one and the same GPU; below 0 if slower.")
    ]
    saved_high_ms: Annotated[float | None, field("High end of it. It is known better than both step times.")]
    blocked_low_ms: Annotated[float | None, field("Low end of the time that syncs block the host.")]
    blocked_high_ms: Annotated[float | None, field("High end of it. It is not what the syncs cost.")]
    limited_by: Annotated[
        Limit | None, field("`arithmetic`, `memory`, `launches`, `syncs`, `communication` or `undecided`.")
    ]
    launches: Annotated[float | None, field("Kernels, copies and fills that the host launches per step.")]
    peak_memory_bytes: Annotated[int | None, field("Peak of live storages as the allocator rounds them.")]
    fits: Annotated[bool | None, field("Whether that fits into the GPU's memory.")]
    reason: Annotated[str | None, field("Why there is no step time.")]
