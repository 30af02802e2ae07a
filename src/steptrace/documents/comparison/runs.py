"""Of a variant: its runs, their step times against the baseline's, their waits, and whether it computes the same."""

from typing import Annotated, Literal

from steptrace.documents.base import Document, field
from steptrace.documents.column import column
from steptrace.documents.run import RunStatus
from steptrace.format import setting
from steptrace.limits import HIGH_SHARE, LONG_STEPS, MODERATE_SHARE

Verdict = Literal["baseline", "faster", "slower", "same", "undecided"]
VariantStatus = Literal[RunStatus, "not run"]
Statistic = Literal["median", "mean"]
InputVerdict = Literal["none", "moderate", "high"]


class ProcessError(Document, frozen=True):
    """How a process failed."""

    status: Annotated[str, field("`failed`, `out of memory`, `killed` or `not run`.")]
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
    status: Annotated[VariantStatus, field("How it ended.")]
    seed: Annotated[int | None, field("Its seed.")]
    path: Annotated[str, field("Its folder.")]
    median_ms: Annotated[float | None, field("Median step time.")]
    mean_ms: Annotated[float | None, field("Mean step time.")]
    p95_ms: Annotated[float | None, field("95th percentile of the step time.")]
    steps: Annotated[int | None, field("Steps that count.")]
    warmup_left_out: Annotated[int | None, field("Leading timed steps that count as warm-up.")]
    error: Annotated[ProcessError | None, field("How it failed.")]


class StepTimes(Document, frozen=True):
    """The unprofiled step time of a variant, in ms."""

    median: Annotated[
        float,
        column(
            "Step time",
            "Median over unprofiled steps, the only source of a claim about speed; 95 % of steps stay under p95. In a "
            f"study where some variant's mean is over {LONG_STEPS:.2f} times its median in every run, the mean: long "
            "steps come back, as where a loader falls behind, and a median leaves them out.",
            "ms",
        ),
    ]
    mean: Annotated[float, field("Mean over the same steps.")]
    statistic: Annotated[Statistic, field("Which of them is the step time: the same in all variants of a study.")]
    p95: Annotated[float, field("95th percentile of all steps.")]
    low: Annotated[float | None, field("Lower end of the step time's interval; null with one run.")]
    high: Annotated[float | None, field("Upper end of the interval.")]
    runs: Annotated[int, field("Measured runs.")]
    steps: Annotated[int, field("Steps of all runs.")]

    @property
    def value(self) -> float:
        """The step time, in ms."""
        return self.mean if self.statistic == "mean" else self.median


class RatioToBaseline(Document, frozen=True):
    """Baseline's step time over the variant's: above 1 is faster."""

    value: Annotated[
        float,
        column(
            "Ratio",
            "Baseline's step time over the variant's: above 1 is faster. The interval carries variance between runs.",
        ),
    ]
    low: Annotated[float | None, field("Lower end of the interval.")]
    high: Annotated[float | None, field("Upper end of the interval.")]
    verdict: Annotated[
        Verdict | None,
        column(
            "Verdict",
            "Faster or slower: the interval excludes 1 and the effect exceeds the noise floor, corrected for the "
            "number of variants. Same: the whole interval is within the floor, of at most 10 %. Else undecided. One "
            "run, or an IQR above 25 % of the median: no verdict.",
        ),
    ]

    @property
    def excludes_one(self) -> bool:
        """Whether the whole interval lies on one side of 1."""
        return self.low is not None and self.high is not None and (self.low > 1 or self.high < 1)


class Noise(Document, frozen=True):
    """How uneven steps and runs are."""

    iqr_over_median: Annotated[
        float | None, field("Interquartile range over median of the steps, as far as waits for data do not explain it.")
    ]
    drift: Annotated[float | None, field("Change of the step time over a run, median of the runs.")]
    uneven: Annotated[tuple[str, ...], field("In what ways noise is above its limits.")]
    warnings: Annotated[tuple[str, ...], field("What to read with care.")]


class LoadingParts(Document, frozen=True):
    """Loading one batch by itself, in ms: medians of a pass of its own, timed in the process that does the work."""

    fetch: Annotated[
        float | None,
        column(
            "Fetch per batch",
            "Time in the data set with its transforms, median of a separate pass. With workers all parts of loading "
            "run beside the step and beside each other: only the wait costs.",
            "ms",
        ),
    ]
    collate: Annotated[float | None, column("Collate per batch", "Making a batch of its samples.", "ms")]
    pin: Annotated[float | None, column("Pin per batch", "Copying it to pinned memory.", "ms")]
    copy: Annotated[float | None, column("Copy per batch", "Copying it to the device.", "ms")]


class LoaderWait(Document, frozen=True):
    """Waiting for data in unprofiled steps."""

    workers: Annotated[int | None, field("Worker processes of the loader, by the configuration.")]
    wait_ms: Annotated[float | None, column("Wait", "Mean wait of an unprofiled step.")]
    counted_ms: Annotated[
        float | None,
        column(
            "Waiting for data",
            "Host time in the loader's next batch; on a GPU, only the part with the GPU idle counts.",
        ),
    ]
    step_ms: Annotated[float | None, field("Mean step time.")]
    idle_part: Annotated[
        float | None, column("Of it with the GPU idle", "Share of the wait with the GPU idle.", "share")
    ]
    share: Annotated[float | None, column("Share of the step", "What counts, as a share of the step time.", "share")]
    verdict: Annotated[
        InputVerdict | None,
        column(
            "Input-bound",
            f"Moderately input-bound if waiting for data counts for {setting(MODERATE_SHARE)} of the step time or "
            f"more, highly from {setting(HIGH_SHARE)} on: the thresholds of the TensorFlow Profiler.",
        ),
    ]
    breakdown_ms: Annotated[LoadingParts | None, field("What loading a batch is made of.")]


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
            "Loss, predictions and gradients against a float64 reference on shared values and fixed seeds; outside "
            "the tolerance of its number format a variant differs.",
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
