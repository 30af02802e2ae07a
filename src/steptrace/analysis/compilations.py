"""What torch.compile did in the program, from the record beside a trace."""

from typing import Final

import pandas as pd

from steptrace.analysis.common.registry import table_part
from steptrace.documents.compilation_rows import CompiledFunctionRow, GraphBreakRow, RecompilationRow
from steptrace.documents.compilations import Compilations
from steptrace.documents.run import capture_of
from steptrace.documents.table import frame_of, names_of
from steptrace.trace.model import Trace, once

_NONE: Final = Compilations(graphs=0, compile_ns=0, functions=(), breaks=(), recompilations=())


@once
def compilations(trace: Trace) -> Compilations:
    """The record's part on compiled code; empty without a record, or if nothing was compiled."""
    capture = capture_of(trace.path)
    return _NONE if capture is None or capture.compiled is None else capture.compiled


@table_part("compiled_functions")
@once
def compiled_functions(trace: Trace) -> pd.DataFrame:
    """The functions that were compiled (table `compiled_functions`), those that took longest first."""
    return frame_of(CompiledFunctionRow, [vars(function) for function in compilations(trace).functions])


@table_part("graph_breaks")
@once
def graph_breaks(trace: Trace) -> pd.DataFrame:
    """The lines at which graphs break (table `graph_breaks`), in the order in which they were compiled."""
    rows = [
        {**vars(graph_break), "hints": " ".join(graph_break.hints) or None}
        for graph_break in compilations(trace).breaks
    ]
    return frame_of(GraphBreakRow, rows)


@table_part("recompilations")
@once
def recompilations(trace: Trace) -> pd.DataFrame:
    """The guards that failed (table `recompilations`), those that failed most often first."""
    names = names_of(RecompilationRow)
    rows = [{name: getattr(guard, name) for name in names} for guard in compilations(trace).recompilations]
    return frame_of(RecompilationRow, rows)
