"""What torch.compile would make of a program's code, as prediction.json holds it.

Plain dataclasses: a prediction runs in environments that have PyTorch alone.
"""

from dataclasses import dataclass
from typing import Final, Literal

from steptrace.documents.compilations import Recompiled
from steptrace.documents.estimate import OperatorCalls

#: Why the kernels of compiled code are not known: this PyTorch is older than those that are followed, or lacks private
#: names that are needed; PyTorch's compiler ended its process or took too long; Dynamo could not follow the code;
#: Inductor could not lower a graph of it; no tensor operator is in it; it is compiled for more kinds of arguments than
#: PyTorch compiles by default; its backward pass is compiled together with the rest of autograd's (compiled autograd);
#: its backend is another one than Inductor and runs the operators one by one.
Unlowered = Literal[
    "release", "names", "ended", "not_followed", "not_lowered", "no_operators", "kinds", "compiled_autograd",
    "backend",
]  # fmt: skip

#: The reasons for code that Dynamo has not followed to its end: the graph breaks of such code are not known either.
WITHOUT_BREAKS: Final[tuple[Unlowered, ...]] = ("release", "names", "ended", "not_followed", "kinds")

#: The reasons for code that PyTorch runs uncompiled: its kernels are those of its operators.
RUNS_UNCOMPILED: Final[tuple[Unlowered, ...]] = ("no_operators", "kinds", "backend")

#: A number of `CompiledStep.queue` below this one stands for the kernels of a compiled call.
FIRST_CALL: Final = -2


@dataclass(frozen=True, kw_only=True)
class GraphBreak:
    """A place where Dynamo ends a graph, and the program runs uncompiled until the next one begins.

    Attributes:
        kind: Dynamo's own name of the reason.
        file: the program's file.
        line: its line.
        code: its text.
        by_pytorch: whether code of PyTorch asks for it, at a line that the program cannot change. Budgets leave it out.
        hints: what PyTorch proposes instead, in its words; None if it proposes nothing.
    """

    kind: str
    file: str | None
    line: int | None
    code: str | None
    by_pytorch: bool = False
    hints: str | None = None


@dataclass(frozen=True, kw_only=True)
class GraphKernels:
    """The kernels that the graphs of compiled code launch, in their order.

    Attributes:
        forward: calls of libraries by their ATen operators, and `inductor.pointwise` and `inductor.reduction`, whose
            arguments hold the bytes `read` and `written` and the number of ATen `operators` in them.
        backward: the same of the backward pass.
    """

    forward: tuple[OperatorCalls, ...]
    backward: tuple[OperatorCalls, ...]


@dataclass(frozen=True, kw_only=True)
class CompiledCode:
    """A module or function that the program compiles, for one kind of arguments.

    Attributes:
        graphs: how many graphs Dynamo makes of it.
        kernels: what they launch; None where that is not known, and of code that PyTorch runs uncompiled.
        breaks: where a graph ends early.
        unlowered: why the kernels are not known.
        reason: what PyTorch says of that, or the names that it lacks.
        seconds: that following it took here; compiling for a GPU takes longer.
        cuda_graphs: whether its kernels are launched as CUDA graphs.
        tunes: whether products are tuned, so that their times are less sure.
        file: where it is called first.
        line: of that file.
        kept_bytes: results, and what is kept for the backward pass; None where that is not known.
        kept_bytes_uncompiled: the same where the code is not compiled.
        fullgraph: whether the program asks for one graph (`fullgraph=True`): then PyTorch ends it with an error at the
            first graph break.
        recompilations: why the function is compiled again at later calls; with the code of its first compilation.
        shares_graphs: whether these are kernels for another size of graphs that an earlier entry has. Graphs and graph
            breaks are counted there, and are none here.
    """

    graphs: int
    kernels: GraphKernels | None
    breaks: tuple[GraphBreak, ...]
    reason: str | None
    seconds: float
    unlowered: Unlowered | None = None
    cuda_graphs: bool = False
    tunes: bool = False
    file: str | None = None
    line: int | None = None
    kept_bytes: int | None = None
    kept_bytes_uncompiled: int | None = None
    fullgraph: bool = False
    recompilations: tuple[Recompiled, ...] = ()
    shares_graphs: bool = False

    @property
    def is_known(self) -> bool:
        """Whether it is known what the code launches: its own kernels, or those of its operators."""
        return self.kernels is not None or self.unlowered in RUNS_UNCOMPILED


@dataclass(frozen=True, kw_only=True)
class CompiledStep:
    """The followed steps with compiled code in place of the operators that it was followed by.

    Attributes:
        codes: what is compiled.
        queue: as a prediction's `queue`; numbers from -2 downwards are calls of compiled code, two for each of
            `codes`: -2 - 2 * place is its forward pass, and one less its backward pass. Code without `kernels` has its
            operators there.
        fused_queue: the same with nothing but products, convolutions and attention of code whose kernels are not
            known, as if everything else were fused into them; empty where all kernels are known.
        is_asked: whether the program compiles nothing itself, and was asked what compiling its modules would give.
        recompilations: how often code is compiled again, of all `codes`.
    """

    codes: tuple[CompiledCode, ...]
    queue: tuple[int, ...]
    fused_queue: tuple[int, ...] = ()
    is_asked: bool = False
    recompilations: int = 0


@dataclass(frozen=True, kw_only=True)
class CompiledSummary:
    """A piece of compiled code for `predict --json`, with the number of its kernels in place of them.

    Attributes:
        file: where it is called first.
        line: of that file.
        graphs: how many graphs Dynamo makes of it.
        kernels_forward: launches of its forward pass; None where its kernels are not known.
        kernels_backward: the same of its backward pass.
        cuda_graphs: whether its kernels are launched as CUDA graphs.
        breaks: where a graph ends early.
        unlowered: why its kernels are not known.
        reason: what PyTorch says of that.
        kept_bytes: results, and what is kept for the backward pass.
        kept_bytes_uncompiled: the same where the code is not compiled.
        is_asked: whether it is not compiled by the program, which was asked what that would give.
        fullgraph: whether the program asks for one graph, so that PyTorch ends it at the first graph break.
        recompilations: why the function is compiled again at later calls; with the code of its first compilation.
        shares_graphs: whether these are kernels for another size of graphs that an earlier entry has. Graphs and graph
            breaks are counted there, and are none here.
    """

    file: str | None
    line: int | None
    graphs: int
    kernels_forward: int | None
    kernels_backward: int | None
    cuda_graphs: bool
    breaks: tuple[GraphBreak, ...]
    unlowered: Unlowered | None
    reason: str | None
    kept_bytes: int | None
    kept_bytes_uncompiled: int | None
    is_asked: bool
    fullgraph: bool = False
    recompilations: tuple[Recompiled, ...] = ()
    shares_graphs: bool = False


def summary_of(compiled: CompiledStep | None) -> tuple[CompiledSummary, ...]:
    """The compiled code of a program, for `predict --json`."""
    if compiled is None:
        return ()
    return tuple(
        CompiledSummary(
            file=code.file,
            line=code.line,
            graphs=code.graphs,
            kernels_forward=None if code.kernels is None else len(code.kernels.forward),
            kernels_backward=None if code.kernels is None else len(code.kernels.backward),
            cuda_graphs=code.cuda_graphs,
            breaks=code.breaks,
            unlowered=code.unlowered,
            reason=code.reason,
            kept_bytes=code.kept_bytes,
            kept_bytes_uncompiled=code.kept_bytes_uncompiled,
            is_asked=compiled.is_asked,
            fullgraph=code.fullgraph,
            recompilations=code.recompilations,
            shares_graphs=code.shares_graphs,
        )
        for code in compiled.codes
    )
