"""The answer of a study as facts: which variant is faster, why, what was checked, and what to do.

`findings.answer` finds it in a comparison, and `words.answer` makes sentences of it. The finding `which_variant` holds
it as its figures.
"""

from typing import Annotated, Final, Literal

from steptrace.documents.base import Document, field
from steptrace.documents.equivalence import EquivalenceStatus, NotComparable
from steptrace.documents.estimate import Band
from steptrace.documents.step_times import RatioToBaseline
from steptrace.documents.why import Why

#: How good the result is, for a page's colour: `bad` if nothing was measured, `care` if a gate is broken or the fastest
#: variant cannot be used.
Tone = Literal["good", "care", "bad", "neutral"]
#: The outcome of the measured step times.
Outcome = Literal[
    "nothing_measured",
    "no_verdict",
    "faster",
    "unconfirmed",
    "none_faster",
    "no_difference",
    "other_batches",
    "estimated",
]
#: Why no variant has a verdict.
NoVerdict = Literal["baseline_not_measured", "baseline_alone", "one_run_each", "too_noisy", "other"]
#: The outcome of the estimates for one GPU.
EstimatedOutcome = Literal[
    "fastest", "one_variant", "not_estimated", "some_not_estimated", "all_alike", "cannot_tell", "other_batches"
]
#: A variant that is at most this many times as fast as its baseline is called about as fast. Ours.
_ABOUT_AS_FAST: Final = 1.05
#: Things that a step can have fewer of than its baseline's.
Counted = Literal["launches", "kernels", "operators", "syncs"]
#: What to do. `no_advice`: nothing was measured, or there is nothing to choose from.
ToDo = Literal[
    "no_advice",
    "use",
    "keep",
    "try_on_gpu",
    "confirm",
    "take_more_runs",
    "use_estimated",
    "try_estimated",
    "measure",
]


class Speed(Document, frozen=True, kw_only=True):
    """A variant's step time against its baseline's."""

    name: Annotated[str, field("The variant.")]
    baseline: Annotated[str, field("Its baseline.")]
    step_ms: Annotated[float | None, field("Its step time.")]
    baseline_ms: Annotated[float | None, field("The baseline's step time.")]
    ratio: Annotated[RatioToBaseline | None, field("Baseline's over the variant's; null without one.")]
    samples: Annotated[int | None, field("Samples of a step.")]
    baseline_samples: Annotated[int | None, field("Samples of a step of the baseline.")]
    equivalence: Annotated[EquivalenceStatus, field("Whether it computes the same.")]
    ratio_per_sample: Annotated[
        RatioToBaseline | None,
        field("Baseline's time per sample over the variant's, where their batches differ; null elsewhere."),
    ] = None


class NamedTime(Document, frozen=True, kw_only=True):
    """A step time, or that of a section of the step."""

    name: Annotated[str, field("The variant.")]
    step_ms: Annotated[float, field("The time.")]


class SectionTimes(Document, frozen=True, kw_only=True):
    """A section of a step that tells variants apart, from sync to sync in a pass of its own."""

    section: Annotated[str, field("The section, such as `calc loss`.")]
    times: Annotated[tuple[NamedTime, ...], field("Its median time in each variant that has it, the shortest first.")]
    hidden: Annotated[
        tuple[NamedTime, ...],
        field("Step times of the variants that this section tells apart and the whole step does not, shortest first."),
    ]


class Ended(Document, frozen=True, kw_only=True):
    """Variants that ended without a step time."""

    status: Annotated[str, field("How they ended.")]
    names: Annotated[tuple[str, ...], field("The variants.")]


class EstimatedAnswer(Document, frozen=True, kw_only=True):
    """What the estimates for one GPU say."""

    gpu: Annotated[str, field("The GPU.")]
    outcome: Annotated[EstimatedOutcome, field("What they say.")]
    name: Annotated[str | None, field("The fastest variant, or the only one.")] = None
    baseline: Annotated[str | None, field("Its baseline; null for a baseline.")] = None
    computes_something_else: Annotated[bool, field("Whether its answer differs.")] = False
    step_ms: Annotated[Band | None, field("Its step time, low and high end.")] = None
    baseline_ms: Annotated[Band | None, field("The baseline's.")] = None
    saved_ms: Annotated[Band | None, field("What it surely saves against its baseline.")] = None
    times_as_fast: Annotated[Band | None, field("How many times as fast as its baseline it surely is.")] = None
    alike: Annotated[tuple[str, ...], field("Variants that cannot be told from it.")] = ()
    is_alone: Annotated[bool, field("Whether no other variant may be the fastest.")] = False
    not_estimated: Annotated[tuple[str, ...], field("Variants without an estimate.")] = ()

    @property
    def is_about_as_fast(self) -> bool:
        """Whether it is faster than its baseline by 5 % at most."""
        return self.times_as_fast is not None and self.times_as_fast[1] <= _ABOUT_AS_FAST


class CellSpeed(Document, frozen=True, kw_only=True):
    """The speed of a variant of a matrix in one cell."""

    cell: Annotated[dict[str, str], field("The matrix's values, by key.")]
    times_as_fast: Annotated[Band, field("Its baseline's step over its own, low and high end.")]


class MatrixSpeed(Document, frozen=True, kw_only=True):
    """An entry of a study's file in all cells of a matrix, in each against the baseline of that cell."""

    entry: Annotated[str, field("Its name in the study's file.")]
    baseline: Annotated[str, field("The name of its baseline there.")]
    keys: Annotated[tuple[str, ...], field("The keys of the matrix that have several values.")]
    cells: Annotated[int, field("Cells in which it was compared.")]
    not_compared: Annotated[int, field("Other cells: there is no step time or estimate of it or of its baseline.")]
    faster: Annotated[int, field("Cells in which it is faster.")]
    slower: Annotated[int, field("Cells in which it is slower.")]
    least: Annotated[
        CellSpeed | None, field("The lowest speed of those that are faster or slower; null without any.")
    ] = None
    most: Annotated[CellSpeed | None, field("The highest speed of those.")] = None
    gpu: Annotated[str | None, field("The GPU of the estimates; null if it was measured.")] = None


class PeakMemory(Document, frozen=True, kw_only=True):
    """The peak memory of a variant's step."""

    name: Annotated[str, field("The variant.")]
    peak_bytes: Annotated[int, field("Its peak.")]


class MemoryRange(Document, frozen=True, kw_only=True):
    """The variants with the lowest and the highest peak."""

    gpu: Annotated[str | None, field("The GPU of the estimates; null if it was measured.")]
    least: Annotated[PeakMemory, field("The variant with the lowest peak.")]
    most: Annotated[PeakMemory, field("The variant with the highest peak.")]


class SyncRemoval(Document, frozen=True, kw_only=True):
    """Blocked time beside what a step gains: a variant whose syncs per step differ from its baseline's."""

    name: Annotated[str, field("The variant.")]
    entry: Annotated[str, field("Its name in the study's file.")]
    baseline: Annotated[str, field("Its baseline.")]
    cell: Annotated[dict[str, str], field("The matrix's values, by key; empty without a matrix.")]
    gpu: Annotated[str | None, field("The GPU of the estimates; null if it was measured.")]
    baseline_syncs: Annotated[float, field("Syncs per step of the baseline.")]
    syncs: Annotated[float, field("Syncs per step of the variant.")]
    baseline_blocked_ms: Annotated[Band, field("The time per step that syncs block the host in the baseline.")]
    blocked_ms: Annotated[Band, field("The same in the variant.")]
    saved_ms: Annotated[Band, field("How much shorter than the baseline's the variant's step is, low and high end.")]
    baseline_step_ms: Annotated[Band | None, field("The baseline's step.")] = None
    baseline_busy_pct: Annotated[Band | None, field("How busy the GPU is in the baseline's step.")] = None


class Fewer(Document, frozen=True, kw_only=True):
    """A count that is lower in a step than in the baseline's step."""

    what: Annotated[Counted, field("What is counted.")]
    before: Annotated[float, field("In a step of the baseline.")]
    now: Annotated[float, field("In a step of the variant.")]


class SavedByClass(Document, frozen=True, kw_only=True):
    """The time that kernels of one class save."""

    kind: Annotated[str, field("The class.")]
    saved_ms: Annotated[Band, field("How much less they take in a step.")]


class WhyFaster(Document, frozen=True, kw_only=True):
    """Why a variant is faster."""

    name: Annotated[str, field("The variant.")]
    baseline: Annotated[str, field("Its baseline.")]
    why: Annotated[Why | None, field("Where its step is shorter, by profiled steps.")] = None
    fewer: Annotated[tuple[Fewer, ...], field("What its step has fewer of.")] = ()
    sync_source: Annotated[Literal["measured", "predicted"], field("Where counts of syncs come from.")] = "measured"
    gpu_work_ms: Annotated[Band | None, field("Estimated GPU work of its step, where that is surely less.")] = None
    baseline_gpu_work_ms: Annotated[Band | None, field("The same of the baseline's step.")] = None
    gpu_saved_ms: Annotated[
        Band | None,
        field("How much less GPU work its step has by the estimate; null where that is not the larger part."),
    ] = None
    gpu_classes: Annotated[tuple[SavedByClass, ...], field("The classes of kernels behind that.")] = ()
    limited_by: Annotated[
        Literal["launches", "syncs"] | None,
        field("What limits the baseline by all estimates, if this variant has fewer of it."),
    ] = None

    @property
    def shows_counts(self) -> bool:
        """Whether counts are named as a reason: not if a shorter part of the step is a reason without them."""
        if self.gpu_saved_ms is not None:
            return False
        return self.why is None or not self.why.shorter or self.why.shorter[0].part == "idle_host"


class NowAndBefore(Document, frozen=True, kw_only=True):
    """A figure of a variant and of its baseline."""

    now: Annotated[float, field("Of the variant.")]
    before: Annotated[float, field("Of the baseline.")]


class Known(Document, frozen=True, kw_only=True):
    """Counts and memory that are lower in a variant's step than in its baseline's, where step times do not decide."""

    name: Annotated[str, field("The variant.")]
    baseline: Annotated[str, field("Its baseline.")]
    syncs: Annotated[NowAndBefore | None, field("Syncs per step; null where it has not fewer.")]
    launches: Annotated[
        NowAndBefore | None, field("Kernels, copies and fills that the host launches per step; null where not fewer.")
    ]
    memory_bytes: Annotated[NowAndBefore | None, field("Peak memory; null where it has not less.")]


class SyncsOfVariants(Document, frozen=True, kw_only=True):
    """Syncs of all variants."""

    source: Annotated[Literal["measured", "predicted"], field("Where the counts come from.")]
    per_step: Annotated[dict[str, float], field("Syncs per step by variant.")]
    not_covered: Annotated[tuple[str, ...], field("Variants that the prediction does not cover completely.")]


class SameAnswer(Document, frozen=True, kw_only=True):
    """Whether variants compute the same."""

    by_status: Annotated[dict[str, tuple[str, ...]], field("Variants by the outcome of the check.")]
    reason: Annotated[str | None, field("Why nothing can be compared, as a sentence.")] = None
    not_comparable: Annotated[
        NotComparable | None, field("Why nothing can be compared; null if variants have different reasons.")
    ] = None


class ChangedSettings(Document, frozen=True, kw_only=True):
    """How to get a variant."""

    name: Annotated[str, field("The variant.")]
    baseline: Annotated[str | None, field("The variant that is changed; null for a baseline.")]
    set: Annotated[tuple[str, ...], field("Overrides to set.")]
    remove: Annotated[tuple[str, ...], field("Overrides to remove.")]


class Line(Document, frozen=True, kw_only=True):
    """A line of a program."""

    file: Annotated[str, field("Its file.")]
    line: Annotated[int, field("Its number.")]


class LineOfLaunches(Line, frozen=True, kw_only=True):
    """A line that launches less."""

    before: Annotated[float, field("Launches per step of the baseline.")]
    now: Annotated[float, field("Launches per step of the variant.")]
    saved_ms: Annotated[Band, field("What the host saves.")]


class Advice(Document, frozen=True, kw_only=True):
    """The advice of a study: what to do."""

    to_do: Annotated[ToDo, field("What.")]
    study: Annotated[str, field("The study, for the command.")]
    scale: Annotated[str | None, field("Its scale, for the command.")]
    variant: Annotated[ChangedSettings | None, field("The variant to use, to keep or to try.")] = None
    cpu_timings: Annotated[bool, field("Whether the step times were measured on a CPU.")] = False
    syncs_now: Annotated[float | None, field("Syncs per step of the variant to try.")] = None
    syncs_before: Annotated[float | None, field("Syncs per step of its baseline.")] = None
    lines_without_sync: Annotated[tuple[Line, ...], field("Lines at which it no longer syncs.")] = ()
    lines_of_launches: Annotated[tuple[LineOfLaunches, ...], field("Lines at which it saves most launches.")] = ()
    waits_ms: Annotated[float | None, field("What all syncs of its baseline cost at most by an estimate.")] = None
    waits_gpu: Annotated[str | None, field("The GPU of that estimate.")] = None
    gpus: Annotated[tuple[str, ...], field("The GPUs of the estimates.")] = ()
    runs: Annotated[int | None, field("How many runs of each variant to take.")] = None
    if_confirmed: Annotated[ChangedSettings | None, field("The variant to use if more runs confirm it.")] = None


class Answer(Document, frozen=True, kw_only=True):
    """The answer of a study."""

    outcome: Annotated[Outcome, field("What the step times say.")]
    baseline: Annotated[str, field("The study's baseline.")]
    tone: Annotated[Tone, field("How good the news is.")]
    use: Annotated[str | None, field("The variant to use or to try; null if there is none to recommend.")]
    advice: Annotated[Advice, field("What to do.")]
    same: Annotated[SameAnswer, field("Whether the variants compute the same.")]
    syncs: Annotated[SyncsOfVariants | None, field("Syncs of the variants; null where the reason names them.")]
    gates_broken: Annotated[int, field("Number of broken gates.")]
    confidence: Annotated[float, field("Confidence of the intervals.")]
    candidates: Annotated[int | None, field("Variants that the verdicts are corrected for.")]
    no_verdict: Annotated[NoVerdict | None, field("Why there is no verdict at all.")] = None
    chosen: Annotated[Speed | None, field("The variant that is faster.")] = None
    alike: Annotated[tuple[Speed, ...], field("Variants about as fast as that.")] = ()
    faster: Annotated[tuple[Speed, ...], field("Other variants that are faster than their baselines.")] = ()
    unconfirmed: Annotated[
        tuple[Speed, ...], field("Variants that measured apart from their baselines, without a verdict yet.")
    ] = ()
    unconfirmed_runs: Annotated[int | None, field("Fewest runs of these and of their baselines.")] = None
    slower: Annotated[tuple[Speed, ...], field("Variants that are slower.")] = ()
    same_speed: Annotated[tuple[Speed, ...], field("Variants that are as fast as their baselines.")] = ()
    undecided: Annotated[tuple[Speed, ...], field("Variants without a measurable difference.")] = ()
    unjudged: Annotated[tuple[Speed, ...], field("Variants without a verdict.")] = ()
    other_batches: Annotated[
        tuple[Speed, ...], field("Variants whose step has another number of samples than their baseline's.")
    ] = ()
    times: Annotated[tuple[NamedTime, ...], field("All step times, the shortest first.")] = ()
    ended: Annotated[tuple[Ended, ...], field("Variants that ended without a step time.")] = ()
    estimated: Annotated[tuple[EstimatedAnswer, ...], field("What the estimates say, by GPU.")] = ()
    reason: Annotated[
        WhyFaster | None,
        field("Why the chosen variant is faster; where nothing has a verdict, why the shortest step is shorter."),
    ] = None
    known: Annotated[Known | None, field("What is known all the same where the estimates do not decide.")] = None
    section: Annotated[
        SectionTimes | None,
        field("The section that tells variants apart whose step times do not; null where no section does."),
    ] = None
    matrix: Annotated[
        tuple[MatrixSpeed, ...], field("The variants over the cells of a matrix; empty without one.")
    ] = ()
    removals: Annotated[
        tuple[SyncRemoval, ...],
        field("Blocked time and gain in each cell; empty unless variants differ in nothing but their syncs."),
    ] = ()
    memory: Annotated[
        MemoryRange | None, field("Peak memory, where variants differ in it clearly; null where they do not.")
    ] = None
