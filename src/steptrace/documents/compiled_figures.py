"""What torch.compile did in the runs of a variant."""

from typing import Annotated

from steptrace.documents.base import Document, column, field
from steptrace.documents.compilations import Recompiled
from steptrace.documents.compiled import GraphBreak


class CompiledFigures(Document, frozen=True):
    """What torch.compile did in the runs of a variant, or would do by its prediction."""

    graph_breaks: Annotated[
        int | None,
        column(
            "Graph breaks",
            "Lines at which graphs of compiled code end early: the most of all runs, or of the prediction where no run "
            "compiled anything; null where that is not known. Those that PyTorch's own code asks for do not count.",
        ),
    ]
    recompilations: Annotated[
        int | None,
        column(
            "Recompilations",
            "How often functions are compiled again, for other arguments: the most of all runs, or of the prediction "
            "where no run compiled anything; null where that is not known.",
        ),
    ]
    compile_ms: Annotated[
        float | None,
        column("Compiling", "Time that all compilations of a run took, median over runs. It is in no timed step."),
    ]
    predicted_breaks: Annotated[
        tuple[GraphBreak, ...],
        field(
            "The graph breaks of the prediction where no run compiled anything, without those that PyTorch's own code "
            "asks for."
        ),
    ] = ()
    predicted_recompilations: Annotated[
        tuple[Recompiled, ...],
        field("Why functions are compiled again, by the prediction, where no run compiled anything."),
    ] = ()
    predicted_limit_reached: Annotated[
        bool,
        field(
            "Whether by the prediction some function reaches PyTorch's limit of recompilations, and then runs as it is."
        ),
    ] = False
