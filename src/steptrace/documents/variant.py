"""One variant of a study: its runs, with the figures that are made of them."""

from typing import Annotated

import msgspec
from msgspec.structs import replace

from steptrace.documents.base import column, field
from steptrace.documents.compiled_figures import CompiledFigures
from steptrace.documents.equivalence import Equivalence
from steptrace.documents.estimate import Estimate
from steptrace.documents.loader_wait import LoaderWait
from steptrace.documents.memory import DeviceMemory
from steptrace.documents.overview import Overview
from steptrace.documents.ranks import Ranks
from steptrace.documents.run import Communication, RunMemory, RunResult, VariantStatus
from steptrace.documents.step_times import Noise, RatioToBaseline, StepTimes, StepVerdict
from steptrace.documents.steps import StepFigures
from steptrace.documents.summary import TraceSummary
from steptrace.documents.sync_counts import SyncCounts, SyncDiff, UnknownPlace
from steptrace.documents.syncs import AwaitedBranch, PredictedBranch, PredictedSite, SyncSite
from steptrace.documents.why import Why
from steptrace.format import factor
from steptrace.limits import PROFILER_OVERHEAD


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

    ratio_per_sample: Annotated[
        RatioToBaseline | None,
        field(
            "Baseline's time per sample over the variant's, with the verdict, where their steps take different numbers "
            "of samples; null elsewhere. `ratio` then compares whole steps and has no verdict."
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
        """The verdict on its step time against its baseline; None without one, as where batches differ."""
        return None if self.ratio is None else self.ratio.verdict

    @property
    def judged_ratio(self) -> RatioToBaseline | None:
        """The ratio that its verdict is about: of times per sample where batches differ, otherwise of step times."""
        return self.ratio if self.ratio_per_sample is None else self.ratio_per_sample

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
