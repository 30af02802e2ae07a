"""The values that commands print with `--json`, one for each command; docs/schemas/commands/ has their schemas."""

from collections.abc import Sequence
from typing import Annotated, Final, Literal

import msgspec

from steptrace.documents.base import Document, described, field
from steptrace.documents.compilations import Compilations
from steptrace.documents.compiled import CompiledSummary, summary_of
from steptrace.documents.estimate import Estimate
from steptrace.documents.prediction import Predicted, PredictedStep

_VERSION: Final = field("Version of this answer.", kind="first")
_KIND: Final = field(
    "Which answer this is: the name of its command, or its own name if the command has several answers."
)


@described("A written excerpt of a trace.")
class WrittenExcerpt(Document, frozen=True, kw_only=True):
    path: Annotated[str, field("The file.")]
    step: Annotated[int, field("Number of the step.")]
    events: Annotated[int, field("Events in it.")]
    size: Annotated[int, field("Its size in bytes.")]


@described("What `analyze` has written. Of traces `summary`, of memory snapshots `snapshot`; the other is null.")
class AnalyzeAnswer(Document, frozen=True, kw_only=True):
    schema_version: Annotated[int, _VERSION] = 1
    kind: Annotated[Literal["analyze"], _KIND] = "analyze"
    summary: Annotated[str | None, field("summary.json.")] = None
    snapshot: Annotated[str | None, field("snapshot.json.")] = None
    report: Annotated[str | None, field("The page; null with `--no-report`.")] = None
    excerpt: Annotated[WrittenExcerpt | None, field("With `--excerpt`.")] = None
    warnings: Annotated[tuple[str, ...], field("What to read with care.")] = ()


@described("What `diff` has written. Of two memory snapshots `snapshot`, otherwise `diff`; the other is null.")
class DiffAnswer(Document, frozen=True, kw_only=True):
    schema_version: Annotated[int, _VERSION] = 1
    kind: Annotated[Literal["diff"], _KIND] = "diff"
    diff: Annotated[str | None, field("diff.json.")] = None
    snapshot: Annotated[str | None, field("snapshot.json.")] = None
    report: Annotated[str, field("The page.")]
    text: Annotated[str, field("What the terminal shows.")]


@described("What `init` has written.")
class InitAnswer(Document, frozen=True, kw_only=True):
    schema_version: Annotated[int, _VERSION] = 1
    kind: Annotated[Literal["init"], _KIND] = "init"
    files: Annotated[tuple[str, ...], field("The files.")]
    next: Annotated[str, field("The command to go on with.")]


@described("One thing that `doctor` looked at.")
class DoctorCheck(Document, frozen=True, kw_only=True):
    name: Annotated[str, field("What it is.")]
    state: Annotated[
        Literal["ok", "note", "missing", "broken"],
        field("`missing` where something cannot be measured without it, `broken` where nothing can."),
    ]
    result: Annotated[str, field("What was found.")]
    allows: Annotated[str, field("What it is for.")]
    next_step: Annotated[str | None, field("What to do; null where nothing is missing.")]


@described("A study that can be named in this folder.")
class KnownStudy(Document, frozen=True, kw_only=True):
    name: Annotated[str, field("Its name.")]
    title: Annotated[str, field("Its title.")]
    variants: Annotated[int, field("How many variants its file lists.")]
    by_default: Annotated[bool, field("Whether `snakemake --cores all` runs it.")]


@described("What `doctor` found.")
class DoctorAnswer(Document, frozen=True, kw_only=True):
    schema_version: Annotated[int, _VERSION] = 1
    kind: Annotated[Literal["doctor"], _KIND] = "doctor"
    usable: Annotated[bool, field("Whether any study can run.")]
    checks: Annotated[tuple[DoctorCheck, ...], field("What was looked at.")]
    studies: Annotated[tuple[KnownStudy, ...], field("The studies of this folder, and those that come with steptrace.")]


@described("A training that can be captured.")
class CapturableProcess(Document, frozen=True, kw_only=True):
    schema_version: Annotated[int, _VERSION] = 1
    kind: Annotated[Literal["process"], _KIND] = "process"
    pid: Annotated[int, field("Its process.")]
    start: Annotated[str, field("What tells it from an earlier process of that number.")]
    script: Annotated[str, field("Its program.")]
    since: Annotated[float, field("When it started, in Unix seconds.")]
    folder: Annotated[str, field("Folder for its traces.")]
    rank: Annotated[int, field("Its rank.")]
    world_size: Annotated[int, field("Ranks of its job.")]
    steps: Annotated[int, field("Steps so far.")]
    recording: Annotated[bool, field("Whether a capture is under way.")]
    job: Annotated[str, field("What its ranks share; empty where it has one.")]
    step_s: Annotated[float, field("Median of its latest steps in seconds; 0 before the second one.")]


@described("What a capture was asked to record.")
class CaptureSettings(Document, frozen=True, kw_only=True):
    steps: Annotated[int, field("Steps recorded.")]
    warmup: Annotated[int, field("Steps under the profiler before them.")]
    stacks: Annotated[bool, field("Python frames.")]
    shapes: Annotated[bool, field("Sizes and types of tensors.")]
    memory: Annotated[bool, field("Allocations and releases.")]


@described("What `capture PID` recorded. `capture` alone prints a list of processes.")
class CaptureAnswer(Document, frozen=True, kw_only=True):
    schema_version: Annotated[int, _VERSION] = 1
    kind: Annotated[Literal["capture"], _KIND] = "capture"
    folder: Annotated[str, field("Where the trace lies.")]
    process: CapturableProcess
    settings: CaptureSettings
    state: Annotated[str, field("`recorded`, or `partial` where the program ended before.")]
    message: Annotated[str, field("What is in it.")]
    next: Annotated[str, field("The command to go on with.")]


@described("How the capture of one rank ended.")
class CapturedRank(Document, frozen=True, kw_only=True):
    state: Annotated[str, field("`recorded`, or `partial` where the program ended before.")]
    message: Annotated[str, field("What is in its trace.")]


@described("What `capture PID --all-ranks` recorded.")
class CaptureAllAnswer(Document, frozen=True, kw_only=True):
    schema_version: Annotated[int, _VERSION] = 1
    kind: Annotated[Literal["capture_all"], _KIND] = "capture_all"
    folder: Annotated[str, field("Where the traces lie.")]
    process: CapturableProcess
    settings: CaptureSettings
    at_step: Annotated[int, field("The step from which on all ranks were recorded.")]
    ranks: Annotated[dict[str, CapturedRank], field("By rank.")]
    next: Annotated[str, field("The command to go on with.")]


#: Why a budget does not hold: the program is over it; it branches differently after more steps than were followed; it
#: compiles nothing; Dynamo cannot follow some of its code; some of its code reaches PyTorch's limit of recompilations.
BudgetReason = Literal["too_many", "branch_not_followed", "nothing_compiled", "not_known", "limit_reached"]


@described("What a program was held to.")
class BudgetAnswer(Document, frozen=True, kw_only=True):
    option: Annotated[Literal["budget", "breaks", "recompilations"], field("The option that sets it.")]
    most: Annotated[int, field("The most that it allows.", kind="fact")]
    found: Annotated[
        float | None,
        field(
            "What was found: syncs per step beyond those of `--allow`; graph breaks, without PyTorch's own; or "
            "recompilations. Null where that is not known.",
            kind="mean",
        ),
    ]
    is_held: Annotated[bool, field("Whether it holds.")]
    reasons: Annotated[tuple[BudgetReason, ...], field("Why not; empty where it holds.")]


@described("A prediction without what estimates are made from.")
class PredictAnswer(Predicted, frozen=True, kw_only=True):
    kind: Annotated[Literal["predict"], _KIND] = "predict"
    compiled: Annotated[tuple[CompiledSummary, ...], field("Code that is compiled; empty where none is.")]
    estimate: Annotated[
        tuple[Estimate, ...] | msgspec.UnsetType, field("With `--gpu`: an estimate for each GPU and batch.")
    ] = msgspec.UNSET
    budgets: Annotated[
        tuple[BudgetAnswer, ...] | msgspec.UnsetType,
        field("With `--budget`, `--breaks` or `--recompilations`: whether they hold."),
    ] = msgspec.UNSET


def predict_answer(
    prediction: PredictedStep, estimates: Sequence[Estimate] | None, budgets: Sequence[BudgetAnswer] = ()
) -> PredictAnswer:
    """The answer on one prediction: prediction.json without its operators, and with what was asked for beside it.

    Args:
        prediction: the content of prediction.json.
        estimates: of the step on each GPU; None if no GPU was named.
        budgets: whether each budget holds; empty if none was set.
    """
    fields = {name: getattr(prediction, name) for name in Predicted.__struct_fields__}
    return PredictAnswer(
        **fields,
        compiled=summary_of(prediction.followed.compiled),
        estimate=msgspec.UNSET if estimates is None else tuple(estimates),
        budgets=tuple(budgets) or msgspec.UNSET,
    )


@described("One variant of a study.")
class PredictedVariant(Document, frozen=True, kw_only=True):
    name: Annotated[str, field("Its name.")]
    error: Annotated[str | None, field("Why there is no prediction.")]
    prediction: Annotated[PredictAnswer | None, field("Its prediction; null where that failed.")]


@described("The predictions of a study's variants.")
class PredictStudyAnswer(Document, frozen=True, kw_only=True):
    schema_version: Annotated[int, _VERSION] = 1
    kind: Annotated[Literal["predict_study"], _KIND] = "predict_study"
    study: Annotated[str, field("Name of the study.")]
    variants: Annotated[tuple[PredictedVariant, ...], field("In the study's order.")]


@described("Measured steps that are alike.")
class MeasuredKind(Document, frozen=True, kw_only=True):
    steps: Annotated[int, field("How many.")]
    of: Annotated[int, field("Of how many.")]
    typical: Annotated[float, field("Their median time in ns.")]
    share: Annotated[float, field("Their share of all steps' time, 0 to 1.")]
    every: Annotated[int | None, field("Steps from one of them to the next, where that is regular.")]
    next_in: Annotated[int | None, field("How many steps come before the next one, where that is regular.")]
    operators: Annotated[float | None, field("Operators that they run, where that is known.")]


@described("What `run` has measured and written.")
class RunAnswer(Document, frozen=True, kw_only=True):
    schema_version: Annotated[int, _VERSION] = 1
    kind: Annotated[Literal["run"], _KIND] = "run"
    run: Annotated[str, field("run.json.")]
    step_ms: Annotated[float, field("Median unprofiled step time.")]
    loader_wait_ms: Annotated[float | None, field("Mean wait for data per step; null without a DataLoader.")]
    summary: Annotated[str | None, field("summary.json; null where nothing was profiled.")]
    report: Annotated[str | None, field("The page; null where nothing was profiled.")]
    predicted: Annotated[PredictAnswer | None, field("Predicted syncs, and estimates; null where none were asked for.")]
    kinds: Annotated[tuple[MeasuredKind, ...], field("The kinds of steps, the usual one first.")]
    compiled: Annotated[Compilations | None, field("What torch.compile did; null where nothing was compiled.")]
    memory_snapshots: Annotated[tuple[str, ...], field("With `--memory-snapshot`: the files.")]
    warnings: Annotated[tuple[str, ...], field("What to read with care.")]


#: Each answer by its kind; `compare` prints compare.json.
ANSWERS_BY_KIND: Final[dict[str, type[Document]]] = {
    "analyze": AnalyzeAnswer,
    "capture": CaptureAnswer,
    "capture_all": CaptureAllAnswer,
    "diff": DiffAnswer,
    "doctor": DoctorAnswer,
    "init": InitAnswer,
    "predict": PredictAnswer,
    "predict_study": PredictStudyAnswer,
    "process": CapturableProcess,
    "run": RunAnswer,
}
