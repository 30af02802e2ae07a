"""Budgets in words: what breaks one, what holds, and what a budget does not cover."""

from collections.abc import Iterable

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
from steptrace.format import count, plural
from steptrace.words.compiled import break_in_words, code_in_words, recompiled_in_words
from steptrace.words.prediction import awaited_in_words
from steptrace.words.sites import site_in_words


def over_in_words(over: OverBudget) -> str:
    """What breaks the budget: a line that begins with the program, then the places or the next step, indented."""
    match over:
        case TooManySyncs():
            beyond = " beyond those allowed" if over.beside_allowed else ""
            places = "".join(f"\n  {site_in_words(site)}" for site in over.sites)
            return f"{over.program}: {plural(over.per_step, 'sync')} per step{beyond}, at most {over.most}{places}"
        case BranchNotFollowed():
            branch = over.branch
            return (
                f"{over.program}: {branch.place} does something else every {branch.every} steps, but only "
                f"{over.steps} were followed\n  next: --steps {branch.every}, or --allow {branch.place}"
            )
        case NothingCompiled():
            return f"{over.program}: nothing is compiled\n  next: leave {over.option} out, or add --gpu GPU --compile"
        case UnknownBreaks():
            unknown = plural(len(over.codes), "compiled code")
            return f"{over.program}: graph breaks of {unknown} not known{_places(over)}"
        case TooManyBreaks():
            return f"{over.program}: {plural(len(over.breaks), 'graph break')}, at most {over.most}{_places(over)}"
        case UnknownRecompilations():
            unknown = plural(len(over.codes), "compiled code")
            return f"{over.program}: recompilations of {unknown} not known{_indented(map(code_in_words, over.codes))}"
        case TooManyRecompilations():
            times = plural(sum(guard.recompilations for guard in over.guards), "recompilation")
            lines = [*map(code_in_words, over.limited), *map(recompiled_in_words, over.guards)]
            return f"{over.program}: {times}, at most {over.most}{_indented(lines)}"


def _places(over: UnknownBreaks | TooManyBreaks) -> str:
    """A line for each code that cannot be followed, and for each graph break."""
    codes = over.codes if isinstance(over, UnknownBreaks) else ()
    return _indented([*map(code_in_words, codes), *map(break_in_words, over.breaks)])


def _indented(lines: Iterable[str]) -> str:
    return "".join(f"\n  {line.strip()}" for line in lines)


def syncs_within_in_words(within: SyncsWithinBudget) -> str:
    """The line on a budget of syncs that all programs keep."""
    beside = "" if within.allowed_per_step is None else f"; {count(within.allowed_per_step)} more at allowed places"
    return f"within the budget: {plural(within.per_step, 'sync')} per step, at most {within.most}{beside}"


def breaks_within_in_words(most: int) -> str:
    """The line on a budget of graph breaks that all programs keep."""
    return f"within the budget: at most {plural(most, 'graph break')}"


def recompilations_within_in_words(most: int) -> str:
    """The line on a budget of recompilations that all programs keep."""
    return f"within the budget: at most {plural(most, 'recompilation')}"


def not_covered_in_words(awaited: BranchAwaited) -> str:
    """The warning on a line that no followed step has reached, with the number of steps that reach it if known."""
    in_steps = awaited.branch.in_steps
    next_step = "" if in_steps is None else f"\n  next: --steps {awaited.steps + in_steps}"
    awaited_text = awaited_in_words(awaited.branch, awaited.steps)
    return f"{awaited.program}: the budget does not cover this: {awaited_text}{next_step}"
