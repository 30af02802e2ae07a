"""What torch.compile did, from the record beside a trace."""

import json
from dataclasses import asdict
from pathlib import Path

from builders import TraceBuilder, training_step
from steptrace.analysis import summarize
from steptrace.documents.compilations import BrokenGraph, Compilations, CompiledFunction, Recompiled
from steptrace.documents.summary import TraceSummary

FUNCTION = CompiledFunction(
    file="train.py", line=3, function="f", code=None, compilations=3, compile_ns=7, limit_reached=True
)
BREAK = BrokenGraph(
    file="train.py", line=5, function="f", kind="reason", code="print()", hints=("Do this.", "Or that."), compilations=1
)
GUARD = Recompiled(
    file="train.py", line=4, function="f", code=None, compiled_file="train.py", compiled_line=3, kind="size", value="x",
    dimension=1, guard="size mismatch", recompilations=2,
)  # fmt: skip
COMPILED = Compilations(graphs=2, compile_ns=9, functions=(FUNCTION,), breaks=(BREAK,), recompilations=(GUARD,))


def summary_beside(folder: Path, record: dict[str, object] | None) -> TraceSummary:
    builder = TraceBuilder()
    training_step(builder)
    trace = builder.write(folder / "trace.json.gz")
    if record is not None:
        (folder / "capture.json").write_text(json.dumps({"unprofiled": None, **record}))
    return summarize([trace])[0].traces[0]


def test_the_record_beside_a_trace_says_what_was_compiled(tmp_path: Path) -> None:
    summary = summary_beside(tmp_path, {"compiled": asdict(COMPILED)})
    (function,) = summary.compiled_functions
    (broken,) = summary.graph_breaks
    (guard,) = summary.recompilations
    assert (function.line, function.compilations, function.compile_ns, function.limit_reached) == (3, 3, 7, True)
    assert (broken.line, broken.kind, broken.hints) == (5, "reason", "Do this. Or that.")
    assert (guard.line, guard.compiled_line, guard.kind, guard.dimension) == (4, 3, "size", 1)


def test_a_record_of_before_and_no_record_have_none(tmp_path: Path) -> None:
    for number, record in enumerate((None, {}, {"compiled": None})):
        summary = summary_beside(tmp_path / str(number), record)
        assert (summary.compiled_functions, summary.graph_breaks, summary.recompilations) == ((), (), ())
