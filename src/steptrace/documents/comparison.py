"""comparison.json, verdict.json and compare.json: a study's variants, a workflow's verdict, several results.

Step times are unprofiled; figures of traces explain them. Unmeasured is null.
"""

from typing import Annotated, Any, Literal

from msgspec.structs import asdict

from steptrace.documents.base import Document, File, column, field
from steptrace.documents.finding import Finding
from steptrace.documents.run import Claim, Environment, SkippedVariant, StudyDocument
from steptrace.documents.step_times import RatioToBaseline, Statistic, StepTimes
from steptrace.documents.syncs import AwaitedBranch, SiteRow
from steptrace.documents.variant import VariantResult
from steptrace.format import setting
from steptrace.limits import NOISE_FLOOR


def key_of(override: str) -> str:
    """The key that a variant's override sets: `loss` of `+loss=giou`."""
    return override.lstrip("+~").partition("=")[0]


def is_measuring(override: str) -> bool:
    """Whether an override says how a variant is measured, and nothing of its training."""
    return key_of(override).partition(".")[0] in ("profile", "scale", "equivalence")


class Method(Document, frozen=True):
    """How intervals and verdicts were made."""

    interval: Annotated[str, column("Interval", "The interval's method.", plain=True)]
    confidence: Annotated[float, column("Confidence", "Its confidence.", "share", plain=True)]
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
    candidates: Annotated[int | None, field("That number; null in files that do not say it.")] = None


#: Why a gate is broken, or was skipped.
GateReasonCode = Literal[
    "did_not_run",
    "other_scale",
    "other_machine",
    "cannot_be_checked",
    "not_equal",
    "below",
    "above",
    "branch_not_followed",
    "baseline_unusable",
    "baseline_without_value",
    "no_value_for_ratio",
    "above_ratio",
]


class GateReason(Document, frozen=True):
    """One reason why a gate is broken, or was skipped; `words.gates` makes the sentence."""

    code: Annotated[GateReasonCode, field("Which.")]
    figures: Annotated[dict[str, Any], field("Its figures, names and settings, by name.")]


class GateOutcome(Document, frozen=True):
    """One gate and how it was judged."""

    study: Annotated[str, field("Study.")]
    variant: Annotated[str, field("Variant.")]
    key: Annotated[str, field("Figure, a path into this document's variants.")]
    limits: Annotated[dict[str, Any], field("As workflow.yaml gives them.")]
    value: Annotated[Any, field("The figure.")]
    outcome: Annotated[Literal["held", "broken", "skipped"], field("The outcome.")]
    text: Annotated[str, field("A sentence if it is not held.")]
    reasons: Annotated[tuple[GateReason, ...], field("Why it is broken, or was skipped.")] = ()
    counted: Annotated[
        Literal["measured", "predicted"] | None, field("Of a count of syncs: whether it was measured or predicted.")
    ] = None
    sites: Annotated[tuple[SiteRow, ...], field("Of a broken count of syncs: the places that are not allowed.")] = ()
    not_covered: Annotated[
        tuple[AwaitedBranch, ...],
        field("Of a predicted count: where the program waits for a step after the followed ones, unless allowed."),
    ] = ()
    followed_steps: Annotated[int | None, field("Of a predicted count: the followed steps, where known.")] = None


class CheckedClaim(Claim, frozen=True, kw_only=True):
    """A number that the source states, and ours."""

    counted: Annotated[
        float | None,
        field("GPU activities per step launched within the label, or predicted operators; null if neither is known."),
    ]
    basis: Annotated[
        Literal["measured", "predicted"] | None,
        field("Whether a trace with GPU work counted, or the prediction; null without a count."),
    ]


class Comparison(StudyDocument, frozen=True, kw_only=True):
    """The content of comparison.json."""

    schema_version: Annotated[int, field("Version of this document.")] = 15
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
    skipped: Annotated[tuple[SkippedVariant, ...], field("Variants of the study's file that do not run here.")] = ()
    claims: Annotated[tuple[CheckedClaim, ...], field("What its source states, with our count beside it.")] = ()

    @property
    def conditions(self) -> dict[str, Any]:
        """The scale, and the facts of the environment by name: what may differ in another result of the study."""
        return {"scale": self.scale, **({} if self.environment is None else asdict(self.environment))}

    @property
    def machine(self) -> str | None:
        """The GPU, or the CPU where there is none."""
        recorded = self.environment
        if recorded is None or recorded.gpu is None:
            return None if recorded is None else f"{recorded.cpu}, no GPU"
        return f"{recorded.gpu_count} × {recorded.gpu}" if recorded.gpu_count > 1 else recorded.gpu

    @property
    def measured(self) -> tuple[VariantResult, ...]:
        """The variants that have a step time."""
        return tuple(variant for variant in self.variants if variant.step_ms is not None)

    @property
    def statistic(self) -> Statistic:
        """The statistic of the variants' step times: the median of the steps, or their mean."""
        return next((variant.step_ms.statistic for variant in self.variants if variant.step_ms is not None), "median")

    @property
    def step_times_ms(self) -> dict[str, float]:
        """Their step times in ms, by name."""
        return {variant.name: variant.step_ms.value for variant in self.variants if variant.step_ms is not None}

    def variant(self, name: str) -> VariantResult | None:
        """The variant of this name."""
        return next((variant for variant in self.variants if variant.name == name), None)

    def has_other_batch(self, variant: VariantResult) -> bool:
        """Whether a measured step has another number of samples than its baseline's: step times do not compare them."""
        baseline = self.variant(variant.baseline)
        samples = {of.samples_per_step for of in (variant, baseline) if of is not None}
        return len(samples - {None}) > 1

    def changes(self, variant: VariantResult) -> tuple[list[str], list[str]]:
        """The overrides to set and to remove in the baseline to get the variant, without those of the measurement."""
        baseline = self.variant(variant.baseline)
        now, before = (
            [] if v is None else [t for t in v.overrides if not is_measuring(t)] for v in (variant, baseline)
        )
        new = [text for text in now if text not in before]
        keys = {key_of(text) for text in new}
        return new, [text for text in before if text not in now and key_of(text) not in keys]

    def changed(self, variant: VariantResult) -> int:
        """How many overrides to set in the baseline to get the variant: the fewer, the simpler."""
        return len(self.changes(variant)[0])

    @property
    def sync_counts(self) -> tuple[Literal["measured", "predicted"], dict[str, float]]:
        """Syncs per step by variant: measured where a GPU was, else predicted; none of variants without a count."""
        measured = {variant.name: variant.syncs.measured_per_step for variant in self.variants}
        if any(count is not None for count in measured.values()):
            return "measured", {name: count for name, count in measured.items() if count is not None}
        predicted = {variant.name: variant.syncs.predicted_per_step for variant in self.variants}
        return "predicted", {name: count for name, count in predicted.items() if count is not None}

    def fastest(self) -> VariantResult | None:
        """The variant with the largest ratio among those that are faster than their baseline; None without one.

        A variant that cannot be used is returned only if no other one is faster. A variant with another batch than its
        baseline is never returned.
        """
        faster = [
            (variant, variant.ratio.value)
            for variant in self.variants
            if variant.ratio is not None and variant.verdict == "faster" and not self.has_other_batch(variant)
        ]
        best = max(faster, key=lambda item: (item[0].can_be_used, item[1]), default=None)
        return None if best is None else best[0]


class Failure(Document, frozen=True):
    """A failed run or equivalence check."""

    study: Annotated[str, field("Study.")]
    variant: Annotated[str, field("Variant.")]
    run: Annotated[str, field("`run0`, `run1`, ..., or `equivalence`.")]
    status: Annotated[str, field("`failed`, `out of memory`, `killed` or `not run`.")]
    error: Annotated[str | None, field("The error in one line.")]


class Differing(Document, frozen=True):
    """A variant whose result lies outside the tolerance: marked, not failed."""

    study: Annotated[str, field("Study.")]
    variant: Annotated[str, field("Variant.")]
    max_rel_err: Annotated[float | None, field("Largest relative error; null if it is not finite.")]


class Verdict(File, frozen=True, kw_only=True):
    """The content of verdict.json."""

    status: Annotated[Literal["pass", "fail"], field("`fail` if anything failed or a gate is broken.")]
    runs: Annotated[int, field("Runs of all studies.")]
    failed: tuple[Failure, ...]
    differs: tuple[Differing, ...]
    gates: Annotated[tuple[GateOutcome, ...], field("Every gate.")]


class Result(Document, frozen=True):
    """One result: a comparison.json."""

    file: Annotated[str, field("The file.")]
    measured_at: Annotated[str | None, field("When its last measured run started (ISO 8601).")]
    machine: Annotated[str, field("GPU, or processor, and scale.")]
    step_ms: Annotated[dict[str, StepTimes | None], field("Step times by variant.")]
    torch: Annotated[str | None, field("Version of PyTorch.")] = None
    steptrace: Annotated[str | None, field("Version of steptrace.")] = None


#: Figures of a variant that are held against those of an earlier result: paths into `variants`.
FigureOfChange = Literal[
    "status",
    "equivalence.status",
    "ratio.verdict",
    "syncs.measured_per_step",
    "syncs.predicted_per_step",
    "operators_per_step",
    "kernels_per_step",
    "peak_allocated_bytes",
    "gpu_busy_pct",
    "input.share",
    "profiled_over_unprofiled",
]
#: What to read with care where two results are compared.
ChangeNoteCode = Literal[
    "same_result",
    "other_scale",
    "means",
    "reconfigured",
    "not_measured",
    "too_few_runs",
    "too_uneven",
    "runs_apart",
]


class ChangeNote(Document, frozen=True):
    """One thing to read with care; `words.results` makes the sentence."""

    code: Annotated[ChangeNoteCode, field("Which.")]
    figures: Annotated[dict[str, Any], field("Its figures and names, by name.")]


class Difference(Document, frozen=True):
    """A figure on both sides, in words; null where it was not measured."""

    name: Annotated[str, field("The figure, or the key of the environment.")]
    before: str | None
    now: str | None
    figure: Annotated[
        FigureOfChange | None, field("The figure, a path into `variants`; null for a fact of the environment.")
    ] = None
    before_value: Annotated[str | float | bool | None, field("The value that `before` says.")] = None
    now_value: Annotated[str | float | bool | None, field("The value that `now` says.")] = None


class VariantChange(Document, frozen=True):
    """A variant that both results have."""

    name: Annotated[str, field("Variant.")]
    ratio: Annotated[
        RatioToBaseline | None,
        column(
            "Before / now",
            "Unprofiled step time of one result over that of the next result: above 1, the next one is faster. Judged "
            "as within a "
            "study, unpaired.",
        ),
    ]
    differing: Annotated[
        tuple[Difference, ...],
        column(
            "Other figures", "Counts and words that differ; memory and shares of time that move by a tenth or more."
        ),
    ]


class Change(Document, frozen=True):
    """The changes from one result to the next."""

    variants: tuple[VariantChange, ...]
    environment: Annotated[tuple[Difference, ...], field("Keys of the environment that differ, and the scale.")]
    only_before: Annotated[tuple[str, ...], field("Variants of the result before alone.")]
    only_now: Annotated[tuple[str, ...], field("Variants of this result alone.")]
    findings_before: Annotated[tuple[str, ...], field("Findings of the result before alone.")]
    findings_now: Annotated[tuple[str, ...], field("Findings of this result alone.")]
    notes: Annotated[tuple[str, ...], field("What to read with care.")]
    remarks: Annotated[tuple[ChangeNote, ...], field("The facts of `notes`.")] = ()


class ComparedResults(File, frozen=True, kw_only=True):
    """The content of compare.json."""

    kind: Annotated[Literal["compare"], field("The command that wrote it.")] = "compare"
    study: Annotated[str, field("Name of the study.")]
    title: Annotated[str, field("Its title.")]
    results: Annotated[tuple[Result, ...], field("In the order in which they were named.")]
    changes: Annotated[tuple[Change, ...], field("From each result to the next: one fewer than results.")]
