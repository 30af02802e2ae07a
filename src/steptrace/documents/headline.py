"""The facts that a trace's page and the terminal begin with.

`findings.headline` finds them in a summary, and `words.headline` makes the sentences.
"""

from dataclasses import dataclass, field
from typing import Literal

from steptrace.documents.quality import LostRecords
from steptrace.documents.subject import Absence


@dataclass(frozen=True)
class SyncFacts:
    """Syncs of a trace.

    Attributes:
        per_step: their mean per step, with steps of each kind as often as they come; None if it was not measured.
        in_steps: the different counts of the profiled steps, ascending; empty if all are alike.
        whole: syncs of the whole trace; None if there was nothing to wait for.
        most_share: the share of the step that all of them cost at most; None if it is unknown.
    """

    per_step: float | None
    in_steps: tuple[int, ...]
    whole: int | None
    most_share: float | None


@dataclass(frozen=True)
class OtherSteps:
    """The kind of steps that takes most of the time besides the usual one."""

    steps: int
    of: int
    median_ns: int
    share: float


@dataclass(frozen=True)
class Headline:
    """The result of a trace.

    Attributes:
        gpu_measured: whether it holds figures of a GPU.
        has_steps: whether it marks steps.
        lost: launches that have lost their work.
        unprofiled_step_ns: the median step without the profiler; None if it was not timed.
        other_steps: another kind of steps; None if there is none.
        busy_pct: GPU busy in percent of the steps, or of the GPU's span.
        idle_cause: the cause of most idle time; None if there is none.
        idle_share: its share of the time.
        syncs: the syncs.
        profiled_step_ms: the mean profiled step; None without steps.
        unread_runtimes: runtimes of devices, such as `npu`, whose calls or work the trace holds in an unknown form.
    """

    gpu_measured: bool
    has_steps: bool
    lost: tuple[LostRecords, ...]
    unprofiled_step_ns: int | None
    other_steps: OtherSteps | None
    busy_pct: float | None
    idle_cause: str | None
    idle_share: float
    syncs: SyncFacts
    profiled_step_ms: float | None = None
    unread_runtimes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Range:
    """The least and the greatest value of several traces."""

    low: float
    high: float


@dataclass(frozen=True)
class Delays:
    """The delays of the rank that the others wait for most.

    Attributes:
        rank: the rank; None where several runs name different ones.
        ns: the time that the others would save without its delays, at most.
        step_share: the same as a share of the step; None where the traces mark no steps,
            since `ns` is of the whole trace then.
    """

    rank: int | None
    ns: float
    step_share: float | None


@dataclass(frozen=True)
class HeadlineOfSeveral:
    """The result of several traces.

    Attributes:
        gpu_measured: whether a trace has figures of a GPU.
        profiled_ms: profiled steps in ms; None if no trace has steps.
        busy_pct: GPU busy in percent; None if no trace has it.
        syncs_per_step: syncs per step; None if no trace has them.
        delays: of the straggler; None without one.
    """

    gpu_measured: bool
    profiled_ms: Range | None
    busy_pct: Range | None
    syncs_per_step: Range | None
    delays: Delays | None


@dataclass(frozen=True)
class UnprofiledLengths:
    """The lengths of the steps that ran before the profiler.

    Attributes:
        median_ns: their median.
        usual_ns: the median of the usual steps; None where all steps are of one kind.
        mean_ns: their mean; None where all steps are of one kind.
        slower: the time of a profiled step over the time of an unprofiled one, of one kind where steps differ.
    """

    median_ns: int
    usual_ns: int | None
    mean_ns: float | None
    slower: float


@dataclass(frozen=True)
class SpanLength:
    """The length of a profiled step, and its longer span, which ends with the step's GPU work."""

    step_ms: float
    span_ms: float


@dataclass(frozen=True)
class StepLengths:
    """The lengths of a step, other than the profiled step's, that a page shows; None for each that it does not."""

    unprofiled: UnprofiledLengths | None
    span: SpanLength | None


#: Why nothing is advised: GPU records were lost, there was no GPU, no finding is worth it, or there is no finding, and
#: then whether kernels are the largest part of all traces.
NothingToAdvise = Literal["gpu_work_lost", "no_gpu", "nothing_worth_it", "kernels_set_the_pace", "no_findings"]

#: What a reader must know of a record before any figure of it.
CautionCode = Literal[
    "no_steps",
    "few_steps",
    "uneven_steps",
    "python_stacks",
    "slow_profile",
    "probably_inference",
    "unknown_idle",
    "explicit_syncs",
]


@dataclass(frozen=True)
class Caution:
    """One thing to know of a record.

    Attributes:
        code: which.
        steps: the number of steps, of `few_steps`.
        spread: IQR/median of the unprofiled steps, of `uneven_steps`. Ranks with other spreads have the same caution.
        slower: the profiled over the unprofiled step time, of `slow_profile`.
        idle: of `unknown_idle`, the idle time without a known cause as a share of the steps. Ranks with other shares
            have the same caution.
        queued: of `unknown_idle`, whether the work after the gaps is known to have been launched before them; else
            the trace has no launch of it.
        lacks: of `unknown_idle`, why the trace cannot tell some causes; None if it can tell all.
    """

    code: CautionCode
    steps: int = 0
    spread: float = field(default=0.0, compare=False)
    slower: float = 0.0
    idle: float = field(default=0.0, compare=False)
    queued: bool = True
    lacks: Absence | None = None
