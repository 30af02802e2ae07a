"""Holds the predictions of programs to budgets: `--budget` with `--allow`, `--breaks`, `--recompilations`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from steptrace.commands.follow import FollowedProgram
from steptrace.compare.allowed import over_budget, unfollowed, unnamed, useless
from steptrace.documents.budget import (
    BranchAwaited,
    BranchNotFollowed,
    NothingCompiled,
    OverBudget,
    SyncsWithinBudget,
    TooManyBreaks,
    TooManyRecompilations,
    TooManySyncs,
    UnknownBreaks,
    UnknownRecompilations,
)
from steptrace.documents.command_answers import BudgetAnswer, BudgetReason
from steptrace.documents.compiled import WITHOUT_BREAKS, CompiledStep, GraphBreak
from steptrace.documents.prediction import PredictedStep, PredictedSync
from steptrace.documents.syncs import AwaitedBranch, PredictedBranch


@dataclass(frozen=True, kw_only=True)
class Budgets:
    """The budgets that the command line sets; None for those that it leaves out.

    Attributes:
        syncs: the most syncs per step.
        allow: places whose syncs do not count.
        breaks: the most graph breaks.
        recompilations: the most recompilations.
    """

    syncs: int | None
    allow: Sequence[str]
    breaks: int | None
    recompilations: int | None


def not_allowed(prediction: PredictedStep, allow: Sequence[str]) -> list[PredictedSync]:
    """The syncs that no entry of `--allow` covers."""
    return [sync for sync in prediction.sites if over_budget([sync.site], allow)]


def useless_entries(followed: Sequence[FollowedProgram], allow: Sequence[str]) -> list[str]:
    """The entries of `--allow` that cover nothing in any program; they may be misspelt."""
    predictions = _predictions(followed)
    if not predictions:
        return []
    sites = [sync.site for prediction in predictions for sync in prediction.sites]
    branches: list[PredictedBranch | AwaitedBranch] = []
    for prediction in predictions:
        branches += [*prediction.branches, *prediction.awaited]
    return useless(allow, sites, branches)


def awaited_branches(followed: Sequence[FollowedProgram], allow: Sequence[str]) -> list[BranchAwaited]:
    """The lines that no followed step has reached, and that no entry of `--allow` names."""
    return [
        BranchAwaited(program.shown, branch, len(program.prediction.by_step))
        for program in followed
        if program.prediction is not None
        for branch in unnamed(program.prediction.awaited, allow)
    ]


def syncs_over(followed: Sequence[FollowedProgram], most: int, allow: Sequence[str]) -> list[OverBudget]:
    """What breaks a budget of syncs.

    A program breaks it by its syncs. If these are few enough, branches that were not followed to their end break it.
    """
    over: list[OverBudget] = []
    for program in followed:
        if program.prediction is None:
            continue
        syncs = not_allowed(program.prediction, allow)
        per_step = _per_step(syncs)
        if per_step > most:
            sites = tuple(sync.site for sync in syncs)
            over.append(TooManySyncs(program.shown, per_step, most, sites, beside_allowed=bool(allow)))
            continue
        steps = len(program.prediction.by_step)
        branches = unfollowed(program.prediction.branches, steps, allow)
        over += [BranchNotFollowed(program.shown, branch, steps) for branch in branches]
    return over


def syncs_within(followed: Sequence[FollowedProgram], most: int, allow: Sequence[str]) -> SyncsWithinBudget:
    """The figures of a budget that all programs keep: the most syncs that any of them makes in a step."""
    predictions = _predictions(followed)
    counted = [_per_step(not_allowed(prediction, allow)) for prediction in predictions]
    beside = max(_per_step(prediction.sites) - count for prediction, count in zip(predictions, counted, strict=True))
    return SyncsWithinBudget(max(counted), most, beside if allow else None)


def breaks_over(followed: Sequence[FollowedProgram], most: int) -> list[OverBudget]:
    """What breaks a budget of graph breaks.

    A program that compiles nothing, or whose code cannot be followed, breaks any budget: its graph breaks are not
    known. Breaks that PyTorch's own code asks for do not count.
    """
    return _compiled_over(followed, "--breaks", partial(_over_breaks, most))


def _over_breaks(most: int, program: str, compiled: CompiledStep) -> OverBudget | None:
    unknown = tuple(code for code in compiled.codes if code.unlowered in WITHOUT_BREAKS)
    breaks = _breaks(compiled)
    if unknown:
        return UnknownBreaks(program, unknown, breaks)
    return TooManyBreaks(program, most, breaks) if len(breaks) > most else None


def recompilations_over(followed: Sequence[FollowedProgram], most: int) -> list[OverBudget]:
    """What breaks a budget of recompilations.

    A program that compiles nothing, or whose code cannot be followed, breaks any budget. So does code that reaches
    PyTorch's limit of recompilations, as it then runs uncompiled.
    """
    return _compiled_over(followed, "--recompilations", partial(_over_recompilations, most))


def _over_recompilations(most: int, program: str, compiled: CompiledStep) -> OverBudget | None:
    limited = tuple(code for code in compiled.codes if code.unlowered == "kinds")
    unknown = tuple(code for code in compiled.codes if code.unlowered in WITHOUT_BREAKS and code not in limited)
    if unknown:
        return UnknownRecompilations(program, unknown)
    if limited or compiled.recompilations > most:
        guards = tuple(guard for code in compiled.codes for guard in code.recompilations)
        return TooManyRecompilations(program, most, guards, limited)
    return None


def _compiled_over(
    followed: Sequence[FollowedProgram], option: str, judge: Callable[[str, CompiledStep], OverBudget | None]
) -> list[OverBudget]:
    """What breaks a budget of compiled code; a program that compiles nothing breaks any.

    Args:
        followed: the programs; those without a prediction are passed over.
        option: the option that sets the budget.
        judge: says of a program's name and its compiled code what breaks the budget; None if it is kept.
    """
    over: list[OverBudget | None] = []
    for program in followed:
        if program.prediction is None:
            continue
        compiled = program.prediction.followed.compiled
        over.append(NothingCompiled(program.shown, option) if compiled is None else judge(program.shown, compiled))
    return [budget for budget in over if budget is not None]


def budget_answers(program: FollowedProgram, budgets: Budgets) -> list[BudgetAnswer]:
    """Whether a program holds each of its budgets, for `--json`; empty if it was not followed."""
    prediction = program.prediction
    if prediction is None:
        return []
    compiled = prediction.followed.compiled
    answers = []
    if budgets.syncs is not None:
        over = syncs_over([program], budgets.syncs, budgets.allow)
        per_step = _per_step(not_allowed(prediction, budgets.allow))
        answers.append(
            BudgetAnswer(option="budget", most=budgets.syncs, found=per_step, is_held=not over, reasons=_reasons(over))
        )
    if budgets.breaks is not None:
        over = breaks_over([program], budgets.breaks)
        is_known = compiled is not None and not any(code.unlowered in WITHOUT_BREAKS for code in compiled.codes)
        answers.append(
            BudgetAnswer(
                option="breaks",
                most=budgets.breaks,
                found=len(_breaks(compiled)) if is_known and compiled is not None else None,
                is_held=not over,
                reasons=_reasons(over),
            )
        )
    if budgets.recompilations is not None:
        over = recompilations_over([program], budgets.recompilations)
        is_known = compiled is not None and not any(isinstance(budget, UnknownRecompilations) for budget in over)
        answers.append(
            BudgetAnswer(
                option="recompilations",
                most=budgets.recompilations,
                found=compiled.recompilations if is_known and compiled is not None else None,
                is_held=not over,
                reasons=_reasons(over),
            )
        )
    return answers


def _reasons(over: Sequence[OverBudget]) -> tuple[BudgetReason, ...]:
    """The codes of what breaks a budget, each once."""
    reasons: list[BudgetReason] = []
    for broken in over:
        match broken:
            case TooManySyncs() | TooManyBreaks():
                reasons.append("too_many")
            case TooManyRecompilations():
                times = sum(guard.recompilations for guard in broken.guards)
                if times > broken.most:
                    reasons.append("too_many")
                if broken.limited:
                    reasons.append("limit_reached")
            case BranchNotFollowed():
                reasons.append("branch_not_followed")
            case NothingCompiled():
                reasons.append("nothing_compiled")
            case UnknownBreaks() | UnknownRecompilations():
                reasons.append("not_known")
    return tuple(dict.fromkeys(reasons))


def _breaks(compiled: CompiledStep) -> tuple[GraphBreak, ...]:
    """The graph breaks that count, each once: code that is compiled again breaks at the same lines."""
    breaks = (graph_break for code in compiled.codes for graph_break in code.breaks if not graph_break.by_pytorch)
    return tuple(dict.fromkeys(breaks))


def _predictions(followed: Sequence[FollowedProgram]) -> list[PredictedStep]:
    return [program.prediction for program in followed if program.prediction is not None]


def _per_step(syncs: Sequence[PredictedSync]) -> float:
    return sum(sync.count_per_step for sync in syncs)
