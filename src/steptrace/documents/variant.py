"""One variant of a study: its runs, step times against the baseline's, waits, syncs, and its answer's equivalence."""

from typing import Annotated, Final, Literal, get_args

import msgspec
from msgspec.structs import replace

from steptrace.documents.base import Document, column, described, field
from steptrace.documents.compilations import Recompiled
from steptrace.documents.compiled import GraphBreak
from steptrace.documents.equivalence import EquivalenceStatus, NotComparable, Quantity, Tolerance
from steptrace.documents.estimate import Estimate
from steptrace.documents.input import InputVerdict
from steptrace.documents.memory import DeviceMemory
from steptrace.documents.note import Note
from steptrace.documents.overview import Overview
from steptrace.documents.ranks import Ranks
from steptrace.documents.run import Communication, ProcessError, RunMemory, RunResult, VariantStatus
from steptrace.documents.steps import StepFigures
from steptrace.documents.summary import TraceSummary
from steptrace.documents.syncs import AwaitedBranch, Place, PredictedBranch, PredictedSite, SyncSite
from steptrace.format import factor, setting
from steptrace.limits import HIGH_SHARE, LONG_STEPS, MODERATE_SHARE, PROFILER_OVERHEAD

StepVerdict = Literal["baseline", "faster", "slower", "same", "undecided"]
Statistic = Literal["median", "mean"]


class StepTimes(Document, frozen=True):
    """The unprofiled step time of a variant, in ms."""

    median: Annotated[
        float,
        column(
            "Step time",
            "Median over unprofiled steps, the only source of a claim about speed; 95 % of steps stay under p95. In a "
            f"study where some variant's mean is over {factor(LONG_STEPS)} times its median in every run, the mean: "
            "long steps come back, as where a loader falls behind, and a median leaves them out.",
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
        StepVerdict | None,
        column(
            "Verdict",
            "Faster or slower: the interval excludes 1 and the effect exceeds the noise floor, corrected for the "
            "number of variants. Same: the whole interval is within the floor, of at most 10 %. Otherwise undecided. "
            "One run, or an IQR above 25 % of the median: no verdict.",
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
    uneven: Annotated[tuple[str, ...], field("The kinds of noise that are above their limits, as sentences.")]
    warnings: Annotated[tuple[str, ...], field("The notes as sentences.")]
    notes: Annotated[tuple[Note, ...], field("What to read with care.")] = ()


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


class Equivalence(Document, frozen=True):
    """Whether a variant computes what its reference computes."""

    status: Annotated[
        EquivalenceStatus,
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
    reason: Annotated[str | None, field("Why the two cannot be compared, as a sentence.")] = None
    not_comparable: Annotated[
        NotComparable | None, field("Why the two cannot be compared; null in files of before this field.")
    ] = None

    @property
    def held(self) -> list[tuple[Quantity, float | None, float | None]]:
        """The quantities compared with the reference: name, relative error, and tolerance (None without one)."""
        names = get_args(Quantity)
        return [(name, getattr(self, f"{name}_rel_err"), getattr(self.tolerance, name, None)) for name in names]


class SyncCounts(Document, frozen=True):
    """Syncs per step by three sources."""

    measured_per_step: Annotated[
        float | None,
        column(
            "Syncs per step",
            "Host operations in a step that wait for queued GPU work: traced on a GPU, or predicted without one.",
        ),
    ]
    predicted_per_step: Annotated[float | None, field("Predicted without a GPU: the mean of the followed steps.")]
    predicted_not_judged: Annotated[int | None, field("Operations that the prediction does not cover.")]
    predicted_batch_size: Annotated[int | None, field("Batch size of the prediction.")]
    warned_per_step: Annotated[float | None, field("Warned of by PyTorch's own check.")]
    predicted_steps: Annotated[int | None, field("Steps that the prediction rests on.")] = None


@described("A place that the prediction does not cover.")
class UnknownPlace(Place, frozen=True):
    reason: Annotated[str | None, field("Why.")]
    count_per_step: Annotated[float | None, field("Per step.")]


class SyncedSteps(Document, frozen=True):
    """The steps in which a sync happens that is not in all of them."""

    in_steps: Annotated[int, field("In how many steps.")]
    of_steps: Annotated[int, field("How many steps were looked at.")]
    every: Annotated[int | None, field("Steps from one of them to the next, where that is regular.")]


@described("A sync on both sides.")
class SyncChange(Place, frozen=True):
    kind: Annotated[str | None, field("What waits.")]
    baseline_count_per_step: Annotated[float | None, field("Per step of the baseline.")]
    variant_count_per_step: Annotated[float | None, field("Per step of the variant.")]
    baseline_steps: Annotated[
        SyncedSteps | None, field("Of the baseline, where only some steps have it; else null.")
    ] = None
    variant_steps: Annotated[SyncedSteps | None, field("Of the variant, where only some steps have it; else null.")] = (
        None
    )


class SyncDiff(Document, frozen=True):
    """Which syncs a variant removes, keeps and adds."""

    basis: Annotated[Literal["measured", "predicted"], field("What is compared.")]
    sites: Annotated[tuple[SyncChange, ...], field("What changes in number first.")]


class KernelSaving(Document, frozen=True):
    """A kernel that takes less time in a step of the variant."""

    name: Annotated[str, field("Short name of the kernel.")]
    ns: Annotated[float, field("How much less it takes in a step.")]


class Saving(Document, frozen=True):
    """A part of a step that takes another time than in the baseline."""

    part: Annotated[str, field("The part: a key of `Overview.parts_ns`.")]
    ns: Annotated[float, field("The difference in a step.")]
    kernels: Annotated[tuple[KernelSaving, ...], field("The kernels that account for it, the largest first.")]


#: From this share of the time saved on, the syncs that are gone are a reason.
_LEAST_BY_SYNCS: Final = 0.5


class Why(Document, frozen=True):
    """Where a step of a variant is shorter than its baseline's, by profiled steps without what the profiler added."""

    saved_ns: Annotated[float, field("How much shorter an unprofiled step is.")]
    shorter: Annotated[
        tuple[Saving, ...], field("The parts that take at least a tenth of that less, the largest first.")
    ]
    longer: Annotated[tuple[Saving, ...], field("The parts that take more time, by at least a tenth of that.")]
    syncs_ns: Annotated[
        float | None,
        field("What the syncs that are gone can have cost at most; null if not measured, or if none is gone."),
    ]

    @property
    def by_syncs(self) -> bool:
        """Whether the syncs that are gone may be a main reason: they may cost half of the time saved, or more."""
        # What was not measured rules nothing out.
        return self.syncs_ns is None or self.syncs_ns >= _LEAST_BY_SYNCS * self.saved_ns


class CompiledFigures(Document, frozen=True):
    """What torch.compile did in the runs of a variant, or would do by its prediction."""

    graph_breaks: Annotated[
        int | None,
        column(
            "Graph breaks",
            "Lines at which graphs of compiled code end early: the most of all runs, or of the prediction where no run "
            "compiled anything; null where that is not known. Those that PyTorch's own code asks for do not count.",
        ),
    ]
    recompilations: Annotated[
        int | None,
        column(
            "Recompilations",
            "How often functions are compiled again, for other arguments: the most of all runs, or of the prediction "
            "where no run compiled anything; null where that is not known.",
        ),
    ]
    compile_ms: Annotated[
        float | None,
        column("Compiling", "Time that all compilations of a run took, median over runs. It is in no timed step."),
    ]
    predicted_breaks: Annotated[
        tuple[GraphBreak, ...],
        field(
            "The graph breaks of the prediction where no run compiled anything, without those that PyTorch's own code "
            "asks for."
        ),
    ] = ()
    predicted_recompilations: Annotated[
        tuple[Recompiled, ...],
        field("Why functions are compiled again, by the prediction, where no run compiled anything."),
    ] = ()
    predicted_limit_reached: Annotated[
        bool,
        field(
            "Whether by the prediction some function reaches PyTorch's limit of recompilations, and then runs as it is."
        ),
    ] = False


class VariantResult(StepFigures, frozen=True):
    """One variant of a study."""

    name: Annotated[str, field("Its name.")]
    status: Annotated[VariantStatus, field("`ok` if every run ended well; otherwise the worst ending.")]
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
    predicted_sites: tuple[PredictedSite, ...]
    predicted_unknown: tuple[UnknownPlace, ...]
    nvml_util_pct: Annotated[
        float | None,
        column(
            "NVML utilisation",
            "nvidia-smi's figure over the unprofiled steps: the share of time with any kernel. High does not mean well "
            "used.",
        ),
    ]
    profiled_over_unprofiled: Annotated[
        float | None,
        column(
            "Profiled / unprofiled",
            "Step time in the profiled window over the unprofiled one. Above "
            f"{factor(PROFILER_OVERHEAD)} the trace figures describe a step that the profiler has changed.",
        ),
    ]
    synced_sections_ms: Annotated[
        dict[str, float] | None,
        column(
            "Each label, from sync to sync",
            "Median host time from sync to sync, in a pass of its own that is slower than a real step.",
            "ms",
        ),
    ]
    peak_allocated_bytes: Annotated[
        int | None, column("Peak of the run", "Most bytes allocated in all runs, over the whole training.")
    ]
    batch_bytes: Annotated[
        dict[str, int] | None,
        column("Inputs and targets copied", "Bytes of one batch's tensors as they are copied.", "B"),
    ]
    input: LoaderWait | None
    trace: Annotated[
        TraceSummary | None, field("Rank 0's traces of all runs, combined, without pictures; null without any.")
    ]
    ranks: Annotated[Ranks | None, field("What the ranks' traces say together, of all runs; null for one rank.")]
    memory: Annotated[RunMemory | None, field("What the runs had and held.")]
    communication: Annotated[Communication | None, field("What the ranks tell each other; null for one rank.")]
    equivalence: Equivalence
    sync_diff: SyncDiff | None = None
    estimates: Annotated[
        tuple[Estimate, ...], field("Estimates for GPUs that are not in this machine (`estimate_gpus`).")
    ] = ()
    predicted_branches: Annotated[
        tuple[PredictedBranch, ...],
        field("Lines that branch differently every few steps, by the prediction."),
    ] = ()
    predicted_awaited: Annotated[
        tuple[AwaitedBranch, ...],
        field("Where the program waits for a step after those that the prediction followed."),
    ] = ()

    why: Annotated[
        Why | None, field("Why its step is shorter than its baseline's; null where it is not, or no profile says it.")
    ] = None

    compiled: Annotated[
        CompiledFigures | None, field("What torch.compile did in its runs; null where nothing was compiled.")
    ] = None

    joules_per_step: Annotated[
        float | None,
        column(
            "Energy per step",
            "Mean power of rank 0's GPU over the unprofiled steps, as NVML samples it, times the mean step time. Other "
            "programs on the same GPU are included. Median of the runs.",
            "J",
        ),
    ] = None

    entry: Annotated[str | None, field("Its name in the study's file, which all cells of a matrix share.")] = None
    cell: Annotated[dict[str, str], field("What the matrix sets for it, by key; empty without a matrix.")] = (
        msgspec.field(default_factory=dict)
    )

    @property
    def unfollowed_branches(self) -> tuple[PredictedBranch, ...]:
        """Those that come round less often than the steps that were followed: what they do may not have been seen."""
        steps = self.syncs.predicted_steps or 0
        return tuple(branch for branch in self.predicted_branches if branch.every > steps)

    @property
    def is_baseline(self) -> bool:
        """Whether the other variants (of its cell, in a matrix) are compared with this one."""
        return self.verdict == "baseline" or self.baseline == self.name

    @property
    def verdict(self) -> StepVerdict | None:
        """Its verdict against its baseline; None without a verdict."""
        return None if self.ratio is None else self.ratio.verdict

    @property
    def step_time_ms(self) -> float | None:
        """Its step time in ms; None where it was not measured."""
        return None if self.step_ms is None else self.step_ms.value

    @property
    def samples_per_s(self) -> float | None:
        """Samples per second at its step time."""
        return self.samples_per_step / self.step_time_ms * 1000 if self.samples_per_step and self.step_time_ms else None

    @property
    def runs_ok(self) -> int:
        """Runs that ended well."""
        return sum(run.status == "ok" for run in self.runs)

    @property
    def sync_sites(self) -> tuple[SyncSite, ...]:
        """Where its traced steps sync; none without a GPU."""
        return () if self.trace is None or self.syncs.measured_per_step is None else self.trace.syncs.sites

    @property
    def sync_sites_over_runs(self) -> tuple[SyncSite, ...]:
        """The same, where a site that some runs lack has its syncs per step over all runs.

        A count that is compared with the variant's own takes these: that one is over all runs, too.
        """
        if self.trace is None or not self.trace.quality.steps:
            return self.sync_sites
        runs = self.trace.runs
        return tuple(
            site if site.runs == runs else replace(site, count_per_step=self._per_step_of_all_runs(site))
            for site in self.sync_sites
        )

    def _per_step_of_all_runs(self, site: SyncSite) -> float | None:
        """A site's syncs per step over all runs; of a file that does not hold them from its rounded count."""
        if site.per_step_of_all_runs is not None or self.trace is None:
            return site.per_step_of_all_runs
        return site.count / self.trace.quality.steps

    @property
    def overview(self) -> Overview | None:
        """Where its profiled step goes; None where no trace marks steps."""
        overview = None if self.trace is None else self.trace.overview
        return overview if overview is not None and overview.steps else None

    @property
    def device_memory(self) -> DeviceMemory | None:
        """The traced memory of the device that it trained on."""
        entries = () if self.trace is None else self.trace.memory or ()
        if self.memory is not None:
            return next((entry for entry in entries if entry.device_type == self.memory.device), None)
        return max(entries, key=lambda entry: entry.device_type != "cpu", default=None)

    @property
    def can_be_used(self) -> bool:
        """Whether its answer is the same, or was not or cannot be checked; not where the check failed."""
        return self.equivalence.status not in ("differs", "failed")
