"""comparison.json: the variants of a study side by side. Step times are unprofiled; figures of traces explain them."""

from typing import Annotated, Any, Literal

from steptrace.documents.base import Document, field
from steptrace.documents.finding import Finding
from steptrace.documents.memory import OutOfMemory
from steptrace.documents.rows import TopOperator
from steptrace.documents.run import Environment
from steptrace.documents.step_figures import StepFigures

Verdict = Literal["baseline", "faster", "slower", "same", "undecided"]
Status = Literal["ok", "failed", "oom", "killed", "not run"]
InputVerdict = Literal["none", "moderate", "high"]


class Method(Document, frozen=True):
    """How intervals and verdicts were made."""

    interval: Annotated[str, field("The interval's method.")]
    confidence: Annotated[float, field("Its confidence.")]
    noise_floor: Annotated[float, field("Effects below are noise.")]
    noise_floor_source: Annotated[str, field("`default`, or `A/A pair`.")]
    correction: Annotated[str, field("For the number of variants.")]


class ProcessError(Document, frozen=True):
    """How a process ended that did not end well."""

    status: Annotated[str, field("`failed`, `oom`, `killed` or `not run`.")]
    exit_code: Annotated[int | None, field("Exit code.")]
    signal: Annotated[int | None, field("Signal that ended it.")]
    error: Annotated[str | None, field("The error in one line.")]
    log_tail: Annotated[tuple[str, ...], field("The end of its log.")]


class RunResult(Document, frozen=True):
    """One repeat of a variant."""

    repeat: Annotated[int, field("Its number, from 0.")]
    status: Annotated[Status, field("How it ended.")]
    seed: Annotated[int | None, field("Its seed.")]
    path: Annotated[str, field("Its folder.")]
    median_ms: Annotated[float | None, field("Median step time.", "ms")]
    p95_ms: Annotated[float | None, field("95th percentile of the step time.", "ms")]
    steps: Annotated[int | None, field("Steps that count.")]
    warmup_left_out: Annotated[int | None, field("Leading timed steps found to be warm-up.")]
    error: Annotated[ProcessError | None, field("How it failed.")]


class StepTimes(Document, frozen=True):
    """The unprofiled step time of a variant."""

    median: Annotated[float, field("Centre of the runs' medians.", "ms")]
    p95: Annotated[float, field("95th percentile of all steps.", "ms")]
    low: Annotated[float | None, field("Lower end of the interval; null with one run.", "ms")]
    high: Annotated[float | None, field("Upper end of the interval.", "ms")]
    runs: Annotated[int, field("Measured runs.")]
    steps: Annotated[int, field("Steps of all runs.")]


class RatioToBaseline(Document, frozen=True):
    """Baseline's step time over the variant's: above 1 is faster."""

    value: Annotated[float, field("The ratio.")]
    low: Annotated[float | None, field("Lower end of the interval.")]
    high: Annotated[float | None, field("Upper end of the interval.")]
    verdict: Annotated[Verdict | None, field("Null where none can be given.")]


class Noise(Document, frozen=True):
    """How uneven steps and runs are."""

    iqr_over_median: Annotated[float | None, field("Interquartile range over median of the steps.")]
    between_runs: Annotated[float | None, field("Standard deviation of the logarithms of the runs' medians.")]
    drift: Annotated[float | None, field("Change of the step time over a run, median of the runs.")]
    outlier_steps: Annotated[int | None, field("Steps with a modified z-score above 3.5; they count.")]
    uneven: Annotated[tuple[str, ...], field("In what ways noise is above its limits.")]
    warnings: Annotated[tuple[str, ...], field("What to read with care.")]


class SyncCounts(Document, frozen=True):
    """Host synchronisations per step by three sources."""

    measured_per_step: Annotated[float | None, field("Traced on a GPU.")]
    predicted_per_step: Annotated[int | None, field("Predicted without one.")]
    predicted_not_judged: Annotated[int | None, field("Operations that the prediction cannot judge.")]
    predicted_batch_size: Annotated[int | None, field("Batch size of the prediction.")]
    warned_per_step: Annotated[float | None, field("Warned of by PyTorch's own check.")]


class Place(Document, frozen=True):
    """A place in the program."""

    file: Annotated[str | None, field("File of the line.")]
    line: Annotated[int | None, field("Line.")]
    function: Annotated[str | None, field("Function.")]
    op: Annotated[str | None, field("Innermost operator.")]
    label: Annotated[str | None, field("Innermost `record_function` label.")]
    phase: Annotated[str | None, field("Part of the step.")]
    code: Annotated[str | None, field("Text of the line.")]


class PredictedSite(Place, frozen=True):
    """Predicted synchronisations at one place."""

    kind: Annotated[str | None, field("What waits: `d2h_copy`, `stream`, ...")]
    count_per_step: Annotated[float | None, field("Per step.")]


class UnknownPlace(Place, frozen=True):
    """A place that the prediction cannot judge."""

    reason: Annotated[str | None, field("Why.")]
    count_per_step: Annotated[float | None, field("Per step.")]


class SyncSiteOfVariant(PredictedSite, frozen=True):
    """Traced synchronisations at one place: medians over the runs, per step."""

    blocked_ns_per_step: Annotated[float | None, field("Host blocked.", "ns")]
    exposed_idle_ns_per_step: Annotated[float | None, field("GPU idle time exposed.", "ns")]
    ceiling_ns_per_step: Annotated[float | None, field("What a step could save at most without them.", "ns")]
    saved_ns_per_step: Annotated[float | None, field("What the dependency model saves without them.", "ns")]


class SyncAgreement(Document, frozen=True):
    """One place as predicted, warned of and traced."""

    file: Annotated[str | None, field("File.")]
    line: Annotated[int | None, field("Line.")]
    function: Annotated[str | None, field("Function.")]
    code: Annotated[str | None, field("Text of the line.")]
    phase: Annotated[str, field("`forward` or `backward`.")]
    kind: Annotated[str | None, field("What waits.")]
    predicted: Annotated[float, field("Per step.")]
    warned: Annotated[float | None, field("Per step.")]
    traced: Annotated[float | None, field("Per step.")]
    why: Annotated[str | None, field("Likely reason of a difference; null where they agree.")]


class SyncPrices(Document, frozen=True):
    """What a step would gain without any of its own syncs, in profiled time."""

    all_saved_ns_per_step: Annotated[float | None, field("By the dependency model.", "ns")]
    all_ceiling_ns_per_step: Annotated[float, field("At most.", "ns")]
    replay_error: Annotated[float, field("Modelled over measured step time with nothing removed, less 1.")]
    unexplained_ns_per_step: Annotated[float, field("Waiting of the GPU without a known cause.", "ns")]
    reason: Annotated[str | None, field("Why nothing is predicted.")]


class Breakdown(Document, frozen=True):
    """Mean profiled step in the GPU's parts."""

    compute: Annotated[float, field("Compute.", "ms")]
    exposed_comm: Annotated[float, field("Exposed communication.", "ms")]
    exposed_memory: Annotated[float, field("Exposed copies and sets.", "ms")]
    idle: Annotated[float, field("Idle.", "ms")]


class LoadingParts(Document, frozen=True):
    """Loading one batch by itself."""

    fetch: Annotated[float | None, field("Fetch, without the transform.", "ms")]
    transform: Annotated[float | None, field("Transform.", "ms")]
    collate: Annotated[float | None, field("Collate.", "ms")]
    pin: Annotated[float | None, field("Pin.", "ms")]
    copy: Annotated[float | None, field("Copy to the device.", "ms")]


class InputOfVariant(Document, frozen=True):
    """Waiting for data in unprofiled steps."""

    wait_ms: Annotated[float | None, field("Mean wait a step.", "ms")]
    counted_ms: Annotated[float | None, field("What of it counts: with the GPU idle.", "ms")]
    step_ms: Annotated[float | None, field("Mean step time.", "ms")]
    idle_part: Annotated[float | None, field("Share of the wait with the GPU idle.")]
    share: Annotated[float | None, field("What counts, as a share of the step time.")]
    verdict: Annotated[InputVerdict | None, field("How much that is.")]
    traced_share: Annotated[float | None, field("The same by the profiled window alone.")]
    breakdown_ms: Annotated[LoadingParts | None, field("One batch in parts.")]


class OverviewOfVariant(Document, frozen=True):
    """Where a profiled step goes."""

    kind: Annotated[Literal["gpu", "host"], field("Whose parts these are.")]
    step_ms: Annotated[float, field("Mean profiled step.", "ms")]
    parts_ms: Annotated[dict[str, float], field("Its parts; they add up to it.", "ms")]
    device_compute_share: Annotated[float | None, field("Share in which the GPU computed.")]
    operators: Annotated[tuple[TopOperator, ...], field("The operators with the most time of their own.")]


class PlacementOfVariant(Document, frozen=True):
    """Operators per step by where they ran."""

    ops_total: Annotated[float | None, field("All.")]
    ops_device: Annotated[float | None, field("On the GPU.")]
    ops_host: Annotated[float | None, field("On the host.")]
    ops_view: Annotated[float | None, field("Views and allocations.")]
    device_ns: Annotated[float | None, field("GPU time that operators launched.", "ns")]
    host_ns: Annotated[float | None, field("Host time of those on the host.", "ns")]
    view_ns: Annotated[float | None, field("Host time of views.", "ns")]


class PrecisionOfVariant(Document, frozen=True):
    """Number formats, as shares of kernel time."""

    kernel_share: Annotated[dict[str, float], field("By format.")]
    tf32_share: Annotated[float | None, field("In TF32 products.")]
    eligible_share: Annotated[float | None, field("Work that tensor cores could do.")]
    tensor_core_share: Annotated[float | None, field("Of that, on tensor cores.")]
    tensor_core_unknown_share: Annotated[float | None, field("Of that, not known.")]


class OutOfMemoryOfVariant(OutOfMemory, frozen=True):
    """How runs of a variant ran out of memory; the first of them."""

    runs: Annotated[tuple[int, ...], field("Repeats that ran out.")]
    of: Annotated[int, field("Of how many.")]


class MemoryOfVariant(Document, frozen=True):
    """The memory of a variant's profiled window; medians over the runs."""

    device_type: Annotated[str | None, field("`cpu` or `cuda`.")]
    batch_size: Annotated[int | None, field("Batch size.")]
    peak_allocated_bytes: Annotated[float | None, field("Allocated at the peak.", "B")]
    peak_reserved_bytes: Annotated[float | None, field("Most reserved.", "B")]
    before_bytes: Annotated[float | None, field("Held since before the window.", "B")]
    capacity_bytes: Annotated[float | None, field("What was to be had.", "B")]
    headroom_bytes: Annotated[float | None, field("Capacity less what was taken.", "B")]
    fragmentation: Annotated[float | None, field("1 - largest free block / free.")]
    capacity_source: Annotated[str | None, field("Who says the capacity.")]
    complete: Annotated[bool | None, field("Whether all that was held before is known.")]
    gradient_bytes: Annotated[float | None, field("Gradients at the end of backward.", "B")]
    by_category: Annotated[dict[str, float], field("Live at the peak.", "B")]
    curve: Annotated[tuple[tuple[int, int, int | None], ...] | None, field("One step: instant, allocated, reserved.")]
    peak_ts: Annotated[int | None, field("First instant of the peak.", "ns")]
    oom: Annotated[OutOfMemoryOfVariant | None, field("How it ran out.")]


class TriedMessage(Document, frozen=True):
    """The all-reduce of one message alone."""

    bytes: Annotated[int, field("Its size.", "B")]
    ms: Annotated[float | None, field("Time on the slowest rank.", "ms")]
    bus_bytes_per_s: Annotated[float | None, field("Bus bandwidth.", "B/s")]


class StragglerOfVariant(Document, frozen=True):
    """The rank that others wait for in every run."""

    rank: Annotated[int, field("Rank.")]
    share: Annotated[float, field("Median share of the waiting that it causes.")]
    runs: Annotated[int, field("Runs.")]


class CommunicationOfVariant(Document, frozen=True):
    """What the ranks of a training told each other; a step is an optimizer step."""

    world_size: Annotated[int, field("Ranks.")]
    backend: Annotated[str, field("Backend of torch.distributed.")]
    bucket_cap_mb: Annotated[float | None, field("DistributedDataParallel's bucket size.", "MB")]
    gradient_as_bucket_view: Annotated[bool | None, field("Its option.")]
    static_graph: Annotated[bool | None, field("Its option.")]
    no_sync: Annotated[bool | None, field("Whether passes before the last skip the reduction.")]
    comm_hook: Annotated[str | None, field("Its communication hook.")]
    accumulate: Annotated[int, field("Batches a step.")]
    parameters: Annotated[int, field("Parameters with a gradient.")]
    parameter_bytes: Annotated[int, field("Their bytes.", "B")]
    buckets: Annotated[int | None, field("Buckets of gradients.")]
    bucket_bytes: Annotated[tuple[int, ...] | None, field("Their sizes.", "B")]
    bus_bytes_per_s: Annotated[float | None, field("Measured bus bandwidth.", "B/s")]
    bandwidths: Annotated[tuple[TriedMessage, ...], field("Messages tried alone.")]
    expected_ms: Annotated[float | None, field("parameter bytes x 2(n-1)/n / bandwidth.", "ms")]
    simplified_ms: Annotated[float | None, field("parameters x 4 / bandwidth.", "ms")]
    measured_ms: Annotated[float | None, field("All-reduces a step, each instant once.", "ms")]
    measured_over_expected: Annotated[float | None, field("The ratio of the two.")]
    exposed_ms: Annotated[float | None, field("Not hidden by computation.", "ms")]
    overlap: Annotated[float | None, field("Share that computation hid.")]
    wait_ms: Annotated[float | None, field("Waiting for other ranks.", "ms")]
    bytes_per_step: Annotated[float | None, field("Bytes reduced.", "B")]
    all_reduces_per_step: Annotated[float | None, field("All-reduces a step.")]
    all_reduces_per_batch: Annotated[float | None, field("All-reduces a batch.")]
    straggler: Annotated[StragglerOfVariant | None, field("The rank others wait for in every run.")]


class Tolerance(Document, frozen=True):
    """The largest relative errors that count as the same answer."""

    loss: Annotated[float, field("Of the loss.")]
    gradient: Annotated[
        float | None, field("Of the loss's gradient by the predictions; of a program's first gradients in float32.")
    ] = None
    predictions: Annotated[float | None, field("Of the network's output.")] = None
    parameters: Annotated[float | None, field("Of the gradient by the parameters.")] = None


class Equivalence(Document, frozen=True):
    """Whether a variant computes what its reference computes."""

    status: Annotated[
        Literal["same", "differs", "not comparable", "failed", "not measured"],
        field(
            "The outcome; `not comparable` of a program that computes something else each time, or on other samples."
        ),
    ]
    max_rel_err: Annotated[float | None, field("The larger of both errors.")] = None
    loss_rel_err: Annotated[float | None, field("Relative error of the loss.")] = None
    gradient_rel_err: Annotated[
        float | None, field("Relative error of the loss's gradient by the predictions, on shared predictions.")
    ] = None
    predictions_rel_err: Annotated[float | None, field("Relative error of the network's output.")] = None
    parameters_rel_err: Annotated[float | None, field("Relative error of the gradient by the parameters.")] = None
    tolerance: Annotated[Tolerance | None, field("What is allowed.")] = None
    failure: Annotated[ProcessError | None, field("How the check failed.")] = None
    reason: Annotated[str | None, field("Why the two cannot be compared.")] = None


class Difference(Document, frozen=True):
    """A variant's step time less its baseline's, or of one part of the step."""

    delta_ns: Annotated[int, field("Difference.", "ns")]
    delta_ms: Annotated[float, field("Difference.", "ms")]
    low: Annotated[float | None, field("Lower end of its interval.", "ms")]
    high: Annotated[float | None, field("Upper end of its interval.", "ms")]
    baseline_ns: Annotated[int, field("The baseline's.", "ns")]
    variant_ns: Annotated[int, field("The variant's.", "ns")]


class WaterfallPart(Difference, frozen=True):
    """One part of the step in the waterfall; all parts add up to the step's difference."""

    category: Annotated[str, field("The part; `residual` is what the parts leave over.")]


class SyncChange(Place, frozen=True):
    """A synchronisation on both sides."""

    kind: Annotated[str | None, field("What waits.")]
    variant_file: Annotated[str | None, field("The variant's file where it differs.")]
    variant_line: Annotated[int | None, field("The variant's line where it differs.")]
    baseline_count_per_step: Annotated[float | None, field("Per step of the baseline.")]
    variant_count_per_step: Annotated[float | None, field("Per step of the variant.")]
    baseline_blocked_ns_per_step: Annotated[float | None, field("Host blocked, baseline.", "ns")]
    variant_blocked_ns_per_step: Annotated[float | None, field("Host blocked, variant.", "ns")]
    baseline_exposed_idle_ns_per_step: Annotated[float | None, field("GPU idle exposed, baseline.", "ns")]
    variant_exposed_idle_ns_per_step: Annotated[float | None, field("GPU idle exposed, variant.", "ns")]


class SyncDiff(Document, frozen=True):
    """Which synchronisations a variant removes, keeps and adds."""

    basis: Annotated[Literal["measured", "predicted"], field("What is compared.")]
    sites: Annotated[tuple[SyncChange, ...], field("What changes in number first.")]


class WhatIfOfVariant(Document, frozen=True):
    """The variant's step time predicted from the baseline's traces, beside the measured one."""

    removed_per_step: Annotated[float, field("Syncs removed.")]
    added_per_step: Annotated[float, field("Syncs added.")]
    predicted_ms: Annotated[float | None, field("Predicted step time.", "ms")]
    measured_ms: Annotated[float, field("Measured step time.", "ms")]
    error: Annotated[float | None, field("Predicted over measured, less 1.")]
    replay_error: Annotated[float | None, field("The model's error with nothing removed.")]
    runs: Annotated[int, field("Runs behind the prediction.")]
    reason: Annotated[str | None, field("Why there is none.")]


class VariantResult(StepFigures, frozen=True):
    """One variant of a study."""

    name: Annotated[str, field("Its name.")]
    status: Annotated[Status, field("`ok` if every run ended well, else the worst ending.")]
    hypothesis: Annotated[str | None, field("What its author expects.")]
    overrides: Annotated[tuple[str, ...], field("Its difference to the baseline's configuration.")]
    baseline: Annotated[str, field("The variant that it is compared with.")]
    digest: Annotated[str | None, field("Digest of its configuration.")]
    runs: tuple[RunResult, ...]
    step_ms: StepTimes | None
    samples_per_step: Annotated[int | None, field("Samples of one step, all ranks together.")]
    ratio: RatioToBaseline | None
    noise: Noise
    syncs: SyncCounts
    sync_sites: Annotated[tuple[SyncSiteOfVariant, ...], field("Traced, most expensive first.")]
    predicted_sites: tuple[PredictedSite, ...]
    predicted_unknown: tuple[UnknownPlace, ...]
    sync_agreement: tuple[SyncAgreement, ...]
    sync_prices: SyncPrices | None
    nvml_util_pct: Annotated[float | None, field("NVML's sampled utilisation of the unprofiled steps.", "%")]
    profiled_over_unprofiled: Annotated[float | None, field("How much slower profiled steps are.")]
    sections_ms: Annotated[dict[str, float], field("Host time by label, a profiled step.", "ms")]
    sections_device_ms: Annotated[dict[str, float], field("GPU time by label, a profiled step.", "ms")]
    synchronised_sections_ms: Annotated[
        dict[str, float] | None, field("By section in a pass that synchronises around each.", "ms")
    ]
    breakdown_ms: Breakdown | None
    loader_wait_ms: Annotated[float | None, field("Mean wait for data, unprofiled.", "ms")]
    loader_wait_pct: Annotated[float | None, field("The same as a share of the step time.", "%")]
    peak_allocated_bytes: Annotated[int | None, field("Highest of all runs, whole training.", "B")]
    batch_bytes: Annotated[dict[str, int] | None, field("One batch's `inputs` and `targets` on the device.", "B")]
    input: InputOfVariant | None
    overview: OverviewOfVariant | None
    placement: PlacementOfVariant | None
    precision: PrecisionOfVariant | None
    memory: MemoryOfVariant | None
    communication: CommunicationOfVariant | None
    trace_findings: Annotated[tuple[Finding, ...], field("What most runs' traces agree on.")]
    equivalence: Equivalence
    waterfall: Annotated[tuple[WaterfallPart, ...], field("From the baseline's step time to this one's.")] = ()
    step_difference: Difference | None = None
    sync_diff: SyncDiff | None = None
    whatif: WhatIfOfVariant | None = None


class MemoryFit(Document, frozen=True):
    """A line through the peaks of variants that differ in the batch size alone."""

    variants: Annotated[tuple[str, ...], field("The variants.")]
    out_of_memory: Annotated[tuple[str, ...], field("Those that ran out of memory.")]
    peaks: Annotated[tuple[tuple[int, float], ...], field("Batch size and peak (B).")]
    fixed_bytes: Annotated[float, field("Peak at batch size 0.", "B")]
    per_sample_bytes: Annotated[float, field("Peak per sample.", "B")]
    residual: Annotated[float | None, field("Largest distance of a peak from the line.")]
    capacity_bytes: Annotated[float | None, field("What was to be had.", "B")]
    largest_batch: Annotated[int | None, field("The largest that should fit.")]
    failed_batch: Annotated[int | None, field("The smallest that ran out.")]


class GateOutcome(Document, frozen=True):
    """One gate and how it was judged."""

    study: Annotated[str, field("Study.")]
    variant: Annotated[str, field("Variant.")]
    key: Annotated[str, field("Figure, a path into this document's variants.")]
    limits: Annotated[dict[str, Any], field("As workflow.yaml gives them.")]
    value: Annotated[Any, field("The figure.")]
    outcome: Annotated[Literal["held", "broken", "skipped"], field("The outcome.")]
    text: Annotated[str, field("A sentence if it is not held.")]


class Partial(Document, frozen=True):
    """How far a study that was cut off has come."""

    runs: Annotated[int, field("Runs that this comparison is of.")]
    planned: Annotated[int, field("Runs of the whole study.")]


class Comparison(Document, frozen=True):
    """The content of comparison.json."""

    schema_version: Annotated[int, field("Version of this document.")]
    study: Annotated[str, field("Name of the study.")]
    title: Annotated[str, field("Its title.")]
    question: Annotated[str, field("What it asks.")]
    text: Annotated[str, field("What it is about.")]
    baseline: Annotated[str, field("The study's baseline.")]
    scale: Annotated[str, field("Scale that it ran at.")]
    partial: Annotated[Partial | None, field("Of a study that is not done: how much of it this is.")]
    environment: Annotated[Environment | None, field("Of the first measured run.")]
    environments_differ: Annotated[tuple[str, ...], field("Keys that are not the same in all runs.")]
    method: Method
    variants: tuple[VariantResult, ...]
    memory_fit: tuple[MemoryFit, ...]
    findings: tuple[Finding, ...] = ()
    gates: tuple[GateOutcome, ...] = ()
