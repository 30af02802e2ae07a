"""comparison.json: the variants of a study side by side. Step times are unprofiled; figures of traces explain them."""

from typing import Annotated, Any, Literal

from msgspec.structs import asdict

from steptrace.documents.base import Document, field
from steptrace.documents.column import column
from steptrace.documents.comparison.runs import (
    Equivalence,
    LoaderWait,
    Noise,
    RatioToBaseline,
    RunResult,
    Statistic,
    StepTimes,
    VariantStatus,
    Verdict,
)
from steptrace.documents.comparison.syncs import SyncCounts, SyncDiff, UnknownPlace
from steptrace.documents.estimate import Estimate
from steptrace.documents.finding import Finding
from steptrace.documents.memory import DeviceMemory
from steptrace.documents.overview import Overview
from steptrace.documents.ranks import Ranks
from steptrace.documents.run import Communication, Environment, RunMemory
from steptrace.documents.step_figures import StepFigures
from steptrace.documents.study import StudyFile
from steptrace.documents.summary import TraceSummary
from steptrace.documents.syncs import PredictedSite, SyncSite
from steptrace.format import setting
from steptrace.limits import NOISE_FLOOR, PROFILER_OVERHEAD


def key_of(override: str) -> str:
    """The key that a variant's override sets: `loss` of `+loss=giou`."""
    return override.lstrip("+~").partition("=")[0]


def is_measuring(override: str) -> bool:
    """Whether an override says how a variant is measured, and nothing of its training."""
    return key_of(override).partition(".")[0] in ("profile", "scale", "equivalence")


class Method(Document, frozen=True):
    """How intervals and verdicts were made."""

    interval: Annotated[str, column("Interval", "The interval's method.")]
    confidence: Annotated[float, column("Confidence", "Its confidence.", "share")]
    noise_floor: Annotated[
        float,
        column(
            "Noise floor",
            f"The smallest effect that counts: {setting(NOISE_FLOOR)}, or, where a study runs its baseline twice, the "
            "far end of the interval of that pair's ratio.",
            "share",
        ),
    ]
    noise_floor_source: Annotated[str, column("Noise floor from", "`default`, or `A/A pair`.")]
    correction: Annotated[str, column("Correction for several candidates", "For the number of variants.")]


class VariantResult(StepFigures, frozen=True):
    """One variant of a study."""

    name: Annotated[str, field("Its name.")]
    status: Annotated[VariantStatus, field("`ok` if every run ended well, else the worst ending.")]
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
            f"{PROFILER_OVERHEAD:.2f} the trace figures describe a step that the profiler has changed.",
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
        TraceSummary | None, field("Rank 0's trace: those of the runs as one, without its pictures; null without any.")
    ]
    ranks: Annotated[Ranks | None, field("What the ranks' traces say together, of all runs; null for one rank.")]
    memory: Annotated[RunMemory | None, field("What the runs had and held.")]
    communication: Annotated[Communication | None, field("What the ranks tell each other; null for one rank.")]
    equivalence: Equivalence
    sync_diff: SyncDiff | None = None
    estimates: Annotated[tuple[Estimate, ...], field("On GPUs that are not there, by `estimate_gpus`.")] = ()

    @property
    def is_baseline(self) -> bool:
        """Whether the other variants (of its cell, in a matrix) are compared with this one."""
        return self.verdict == "baseline" or self.baseline == self.name

    @property
    def verdict(self) -> Verdict | None:
        """Its verdict against its baseline; None where there is none."""
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


class GateOutcome(Document, frozen=True):
    """One gate and how it was judged."""

    study: Annotated[str, field("Study.")]
    variant: Annotated[str, field("Variant.")]
    key: Annotated[str, field("Figure, a path into this document's variants.")]
    limits: Annotated[dict[str, Any], field("As workflow.yaml gives them.")]
    value: Annotated[Any, field("The figure.")]
    outcome: Annotated[Literal["held", "broken", "skipped"], field("The outcome.")]
    text: Annotated[str, field("A sentence if it is not held.")]


class Comparison(StudyFile, frozen=True, kw_only=True):
    """The content of comparison.json."""

    schema_version: Annotated[int, field("Version of this document.")] = 14
    study: Annotated[str, field("Name of the study.")]
    environment: Annotated[Environment | None, field("Of the first measured run.")]
    environments_differ: Annotated[
        dict[str, tuple[str | int | bool | None, ...]],
        field("Keys that are not the same in all runs, each with the values that there are."),
    ]
    method: Method
    variants: tuple[VariantResult, ...]
    alike: Annotated[
        tuple[str, ...],
        field("Variants faster than the baseline and not shown to be slower than the fastest; simplest first."),
    ] = ()
    findings: tuple[Finding, ...] = ()
    gates: tuple[GateOutcome, ...] = ()
    measured_at: Annotated[str | None, field("When its last measured run started (ISO 8601).")] = None

    @property
    def conditions(self) -> dict[str, Any]:
        """The scale, and the facts of the environment by name, which another result of the study may have otherwise."""
        return {"scale": self.scale, **({} if self.environment is None else asdict(self.environment))}

    @property
    def machine(self) -> str | None:
        """The GPU, or the CPU where there is none."""
        of = self.environment
        if of is None or of.gpu is None:
            return None if of is None else f"{of.cpu}, no GPU"
        return f"{of.gpu_count} × {of.gpu}" if of.gpu_count > 1 else of.gpu

    @property
    def measured(self) -> tuple[VariantResult, ...]:
        """The variants that have a step time."""
        return tuple(variant for variant in self.variants if variant.step_ms is not None)

    @property
    def statistic(self) -> Statistic:
        """What is the step time of its variants: the median of the steps, or their mean."""
        return next((v.step_ms.statistic for v in self.variants if v.step_ms is not None), "median")

    @property
    def step_times_ms(self) -> dict[str, float]:
        """Their step times in ms, by name."""
        return {variant.name: variant.step_ms.value for variant in self.variants if variant.step_ms is not None}

    def variant(self, name: str) -> VariantResult | None:
        """The variant of this name."""
        return next((variant for variant in self.variants if variant.name == name), None)

    def changes(self, variant: VariantResult) -> tuple[list[str], list[str]]:
        """The overrides to set in its baseline to get the variant, and those to remove; not how it is measured."""
        baseline = self.variant(variant.baseline)
        now, before = (
            [] if v is None else [t for t in v.overrides if not is_measuring(t)] for v in (variant, baseline)
        )
        new = [text for text in now if text not in before]
        keys = {key_of(text) for text in new}
        return new, [text for text in before if text not in now and key_of(text) not in keys]

    def changed(self, variant: VariantResult) -> int:
        """How many overrides a variant adds to its baseline's: the fewer, the simpler; one less is the default."""
        return len(self.changes(variant)[0])

    @property
    def sync_counts(self) -> tuple[Literal["measured", "predicted"], dict[str, float]]:
        """Syncs per step by variant: measured where a GPU was, else predicted; none of variants without a count."""
        measured = {v.name: v.syncs.measured_per_step for v in self.variants}
        if any(count is not None for count in measured.values()):
            return "measured", {name: count for name, count in measured.items() if count is not None}
        predicted = {v.name: v.syncs.predicted_per_step for v in self.variants}
        return "predicted", {name: count for name, count in predicted.items() if count is not None}

    def fastest(self) -> VariantResult | None:
        """The variant that is faster than its baseline by most, None without one.

        One that cannot be used only where no other is faster.
        """
        faster = [(v, v.ratio.value) for v in self.variants if v.ratio is not None and v.verdict == "faster"]
        best = max(faster, key=lambda one: (one[0].can_be_used, one[1]), default=None)
        return None if best is None else best[0]
