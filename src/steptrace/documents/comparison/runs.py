"""Of a variant: its runs, their step times against the baseline's, their waits, and whether it computes the same."""

from typing import Annotated, Literal

from steptrace.documents.base import Document, field
from steptrace.documents.column import column
from steptrace.format import setting
from steptrace.limits import HIGH_SHARE, MODERATE_SHARE

Verdict = Literal["baseline", "faster", "slower", "same", "undecided"]
Status = Literal["ok", "failed", "oom", "killed", "not run"]
InputVerdict = Literal["none", "moderate", "high"]


class ProcessError(Document, frozen=True):
    """How a process failed."""

    status: Annotated[str, field("`failed`, `oom`, `killed` or `not run`.")]
    exit_code: Annotated[int | None, field("Exit code.")]
    signal: Annotated[int | None, field("Signal that ended it.")]
    error: Annotated[str | None, field("The error in one line.")]
    log_tail: Annotated[tuple[str, ...], field("The end of its log.")]

    @property
    def ending(self) -> str:
        """How it ended in a few words: "signal 9", "exit code 1"; empty where neither is known."""
        if self.signal is not None:
            return f"signal {self.signal}"
        return "" if self.exit_code is None else f"exit code {self.exit_code}"


class RunResult(Document, frozen=True):
    """One repeat of a variant."""

    repeat: Annotated[int, field("Its number, from 0.")]
    status: Annotated[Status, field("How it ended.")]
    seed: Annotated[int | None, field("Its seed.")]
    path: Annotated[str, field("Its folder.")]
    median_ms: Annotated[float | None, field("Median step time.", "ms")]
    p95_ms: Annotated[float | None, field("95th percentile of the step time.", "ms")]
    steps: Annotated[int | None, field("Steps that count.")]
    warmup_left_out: Annotated[int | None, field("Leading timed steps that count as warm-up.")]
    error: Annotated[ProcessError | None, field("How it failed.")]


class StepTimes(Document, frozen=True):
    """The unprofiled step time of a variant."""

    median: Annotated[
        float,
        column(
            "Step time",
            "Median over unprofiled steps: CUDA events on a GPU, the monotonic clock on a CPU. The only "
            "source of a claim about speed. p95 is the time that 95 % of the steps stay under.",
            "ms",
        ),
    ]
    p95: Annotated[float, field("95th percentile of all steps.", "ms")]
    low: Annotated[float | None, field("Lower end of the interval; null with one run.", "ms")]
    high: Annotated[float | None, field("Upper end of the interval.", "ms")]
    runs: Annotated[int, field("Measured runs.")]
    steps: Annotated[int, field("Steps of all runs.")]


class RatioToBaseline(Document, frozen=True):
    """Baseline's step time over the variant's: above 1 is faster."""

    value: Annotated[
        float,
        column(
            "Ratio",
            "Median of the baseline divided by the median of the variant: above 1 is faster. The interval "
            "carries the variance between runs as well as within them.",
        ),
    ]
    low: Annotated[float | None, field("Lower end of the interval.")]
    high: Annotated[float | None, field("Upper end of the interval.")]
    verdict: Annotated[
        Verdict | None,
        column(
            "Verdict",
            "Faster or slower only if the interval excludes 1 and the effect exceeds the noise floor; "
            "same only if the whole interval lies within the floor, and the floor is at most 10 %; "
            "otherwise undecided. A claim must also survive a correction for the number of variants. One "
            "run of either side, steps whose IQR is above 25 % of the median, and a simulated GPU give no verdict.",
        ),
    ]


class Noise(Document, frozen=True):
    """How uneven steps and runs are."""

    iqr_over_median: Annotated[float | None, field("Interquartile range over median of the steps.")]
    between_runs: Annotated[float | None, field("Standard deviation of the logarithms of the runs' medians.")]
    drift: Annotated[float | None, field("Change of the step time over a run, median of the runs.")]
    outlier_steps: Annotated[int | None, field("Steps with a modified z-score above 3.5; they are not left out.")]
    uneven: Annotated[tuple[str, ...], field("In what ways noise is above its limits.")]
    warnings: Annotated[tuple[str, ...], field("What to read with care.")]


class LoadingParts(Document, frozen=True):
    """Loading one batch by itself."""

    fetch: Annotated[float | None, field("Fetch.", "ms")]
    collate: Annotated[float | None, field("Collate.", "ms")]
    pin: Annotated[float | None, field("Pin.", "ms")]
    copy: Annotated[float | None, field("Copy to the device.", "ms")]


class LoaderWait(Document, frozen=True):
    """Waiting for data in unprofiled steps."""

    workers: Annotated[int | None, field("Worker processes of the loader, by the configuration.")]
    wait_ms: Annotated[float | None, field("Mean wait a step.", "ms")]
    counted_ms: Annotated[
        float | None,
        column(
            "Waiting for data",
            "Host time in the loader's next-batch call. Against a step counts the part of it in which the "
            "GPU had nothing to do; without a GPU all of it.",
            "ms",
        ),
    ]
    step_ms: Annotated[float | None, field("Mean step time.", "ms")]
    idle_part: Annotated[float | None, field("Share of the wait with the GPU idle.")]
    share: Annotated[float | None, field("What counts, as a share of the step time.")]
    verdict: Annotated[
        InputVerdict | None,
        column(
            "Input-bound",
            f"Moderately input-bound if waiting for data counts for {setting(MODERATE_SHARE)} of the step time or "
            f"more, highly from {setting(HIGH_SHARE)} on: the thresholds of the TensorFlow Profiler.",
        ),
    ]
    traced_share: Annotated[float | None, field("The same by the profiled window alone.")]
    breakdown_ms: Annotated[
        LoadingParts | None,
        column(
            "Parts of loading",
            "From a pass of its own over some batches, timed where the work is done; medians per batch. "
            "Fetch is the time in the data set with its transforms, collate makes a batch of samples, "
            "pin copies it to pinned memory, copy to the device. With workers they run beside the step "
            "and beside each other: only the wait costs.",
        ),
    ]


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
        column(
            "Equivalence",
            "Loss, its gradient by the predictions, the predictions, and the gradient by the parameters, "
            "each compared on shared values and fixed seeds with a float64 reference of the study. A "
            "variant outside what its number format and sizes allow differs: it computes something else.",
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

    @property
    def held(self) -> list[tuple[str, float | None, float | None]]:
        """What is held against the reference: its name, its relative error and the tolerance, None without one."""
        names = ("loss", "gradient", "predictions", "parameters")
        return [(name, getattr(self, f"{name}_rel_err"), getattr(self.tolerance, name, None)) for name in names]


class Difference(Document, frozen=True):
    """A variant's step time less its baseline's, or of one part of the step."""

    delta_ns: Annotated[int, field("Difference.", "ns")]
    delta_ms: Annotated[float, field("Difference.", "ms")]
    low: Annotated[
        float | None,
        column(
            "95 % interval",
            "A part's is of the difference between the means over runs (t interval, Welch's or, where "
            "rounds of runs differ, over the rounds): it carries the variance between runs. The whole "
            "step's is the interval from which the verdict comes. One run on either side has none.",
            "ms",
        ),
    ]
    high: Annotated[float | None, field("Upper end of its interval.", "ms")]
    baseline_ns: Annotated[int, field("The baseline's.", "ns")]
    variant_ns: Annotated[int, field("The variant's.", "ns")]


class WaterfallPart(Difference, frozen=True):
    """One part of the step in the waterfall; all parts add up to the step's difference."""

    category: Annotated[
        str,
        column(
            "Residual",
            "What the parts leave of the measured difference: the profiler slows one variant more than "
            "the other, and parts are means where a step time is a median.",
        ),
    ]
