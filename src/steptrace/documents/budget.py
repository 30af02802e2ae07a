"""The facts on a budget of syncs, graph breaks or recompilations that a prediction is held to.

`commands.budget` finds them, and `words.budget` makes the sentences.
"""

from dataclasses import dataclass

from steptrace.documents.compilations import Recompiled
from steptrace.documents.compiled import CompiledCode, GraphBreak
from steptrace.documents.syncs import AwaitedBranch, PredictedBranch, SiteRow


@dataclass(frozen=True)
class TooManySyncs:
    """A program that makes more syncs than its budget allows.

    Attributes:
        program: its name, or its command.
        per_step: syncs per step at places that are not allowed.
        most: the budget.
        sites: these places.
        beside_allowed: whether syncs at other places were allowed.
    """

    program: str
    per_step: float
    most: int
    sites: tuple[SiteRow, ...]
    beside_allowed: bool


@dataclass(frozen=True)
class BranchNotFollowed:
    """A branch on a step counter whose period is longer than the `steps` that were followed."""

    program: str
    branch: PredictedBranch
    steps: int


@dataclass(frozen=True)
class BranchAwaited:
    """A line that the program reaches only after the `steps` that were followed. The budget says nothing about it."""

    program: str
    branch: AwaitedBranch
    steps: int


@dataclass(frozen=True)
class NothingCompiled:
    """A program that compiles nothing, so it has no graph breaks or recompilations to count.

    Attributes:
        program: its name, or its command.
        option: of the command line, which sets the budget.
    """

    program: str
    option: str


@dataclass(frozen=True)
class UnknownBreaks:
    """A program with compiled code that Dynamo cannot follow (`codes`), so its number of graph breaks is not known.

    `breaks` are those of the code that it can follow.
    """

    program: str
    codes: tuple[CompiledCode, ...]
    breaks: tuple[GraphBreak, ...]


@dataclass(frozen=True)
class UnknownRecompilations:
    """A program with compiled code that Dynamo cannot follow (`codes`), so how often it is compiled is not known."""

    program: str
    codes: tuple[CompiledCode, ...]


@dataclass(frozen=True)
class TooManyBreaks:
    """A program whose compiled code has more graph breaks than its budget, `most`, allows."""

    program: str
    most: int
    breaks: tuple[GraphBreak, ...]


@dataclass(frozen=True)
class TooManyRecompilations:
    """A program whose code is compiled again more often than its budget, `most`, allows; `guards` have failed.

    Attributes:
        program: its name, or its command.
        most: the budget.
        guards: why code is compiled again.
        limited: code that reaches PyTorch's limit, so that other calls run uncompiled. It is over any budget.
    """

    program: str
    most: int
    guards: tuple[Recompiled, ...]
    limited: tuple[CompiledCode, ...]


#: What breaks a budget.
OverBudget = (
    TooManySyncs | BranchNotFollowed | NothingCompiled | UnknownBreaks | TooManyBreaks | UnknownRecompilations
    | TooManyRecompilations
)  # fmt: skip


@dataclass(frozen=True)
class SyncsWithinBudget:
    """The most syncs that any of the programs makes in a step.

    Attributes:
        per_step: at places that are not allowed.
        most: the budget.
        allowed_per_step: at allowed places; None if no place is allowed.
    """

    per_step: float
    most: int
    allowed_per_step: float | None
