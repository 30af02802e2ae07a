"""Compiled functions are compiled again and again."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Final

from steptrace.advice.compiled import against_recompilation
from steptrace.documents.base import Document, field
from steptrace.documents.compilation_rows import CompiledFunctionRow, RecompilationRow
from steptrace.documents.compilations import GuardKind, Recompiled
from steptrace.documents.finding import Source
from steptrace.documents.variant import VariantResult
from steptrace.findings.rule import BaseFigures, Match, Rule, Threshold, Words, advise, per_variant
from steptrace.findings.window import Window
from steptrace.format import duration, place, plural
from steptrace.words.compiled import change_in_words, guard_in_words

#: The most guards that are named.
_MOST_NAMED: Final = 3
_LEAST: Final = Threshold(
    2,
    "PyTorch itself makes a size that changes dynamic at its first recompilation",
    unit="",
)


class FailedGuard(Document, frozen=True, kw_only=True):
    """A guard that failed."""

    kind: Annotated[GuardKind, field("What it holds, as a code.")]
    value: Annotated[str, field("The object or setting that it is about, as PyTorch writes it.")]
    dimension: Annotated[int | None, field("Of a tensor's size or stride: which one, from 0.")]
    guard: Annotated[str | None, field("As PyTorch writes it; null if it is predicted.")]
    before: Annotated[
        str | None, field("If predicted: the first value that the code was compiled for, as Python writes it.")
    ]
    now: Annotated[str | None, field("If predicted: the value that it was compiled for again.")]
    file: Annotated[str | None, field("File of the line that it is about.")]
    line: Annotated[int | None, field("That line.")]
    recompilations: Annotated[int, field("How often it failed.")]


class Figures(BaseFigures, frozen=True, kw_only=True):
    """Recompilations of one function."""

    function: Annotated[str | None, field("Its name.")]
    file: Annotated[str | None, field("Its file.")]
    line: Annotated[int | None, field("The line that it begins at.")]
    compilations: Annotated[int, field("How often it was compiled.")]
    compile_ns: Annotated[
        float | None, field("The time of these compilations; null if they are predicted and not measured.")
    ]
    limit_reached: Annotated[bool, field("Whether PyTorch stopped compiling it again.")]
    guards: Annotated[tuple[FailedGuard, ...], field("The guards that failed, the most frequent first.")]


def _find(window: Window) -> Iterator[Match[Figures]]:
    for function in window.entry.compiled_functions:
        rows = [row for row in window.entry.recompilations if _is_of(row, function)]
        if not function.limit_reached and sum(row.recompilations for row in rows) < _LEAST.value:
            continue
        yield Match(
            severity="warning" if function.limit_reached else "info",
            figures=_figures(function, rows),
            source=_source(function, rows),
        )


def _is_of(row: RecompilationRow, function: CompiledFunctionRow) -> bool:
    return (row.compiled_file, row.compiled_line) == (function.file, function.line)


def _source(function: CompiledFunctionRow, rows: Sequence[RecompilationRow]) -> Source:
    first: CompiledFunctionRow | RecompilationRow = rows[0] if rows else function
    return Source(file=first.file, line=first.line, function=first.function, code=first.code)


def _figures(function: CompiledFunctionRow, rows: Sequence[RecompilationRow]) -> Figures:
    return Figures(
        function=function.function,
        file=function.file,
        line=function.line,
        compilations=function.compilations,
        compile_ns=function.compile_ns,
        limit_reached=function.limit_reached,
        guards=_guards(rows),
    )


def _guards(rows: Sequence[RecompilationRow | Recompiled]) -> tuple[FailedGuard, ...]:
    return tuple(
        FailedGuard(
            kind=row.kind,
            value=row.value,
            dimension=row.dimension,
            guard=row.guard,
            before=row.before if isinstance(row, Recompiled) else None,
            now=row.now if isinstance(row, Recompiled) else None,
            file=row.file,
            line=row.line,
            recompilations=row.recompilations,
        )
        for row in rows[:_MOST_NAMED]
    )


def _find_predicted(variant: VariantResult) -> Iterator[Match[Figures]]:
    if variant.compiled is None:
        return
    by_function: dict[tuple[str, int, str], list[Recompiled]] = {}
    for row in variant.compiled.predicted_recompilations:
        by_function.setdefault((row.compiled_file, row.compiled_line, row.function), []).append(row)
    times_of = {function: sum(row.recompilations for row in rows) for function, rows in by_function.items()}
    for (file, line, function), rows in by_function.items():
        times = times_of[file, line, function]
        if times < _LEAST.value:
            continue
        # No function is compiled again more often than the limit allows: it is reached by those with most.
        limit_reached = variant.compiled.predicted_limit_reached and times == max(times_of.values())
        rows.sort(key=lambda row: -row.recompilations)
        yield Match(
            severity="warning" if limit_reached else "info",
            figures=Figures(
                function=function,
                file=file,
                line=line,
                compilations=times + 1,
                compile_ns=None,
                limit_reached=limit_reached,
                guards=_guards(rows),
            ),
            source=Source(file=rows[0].file, line=rows[0].line, function=function, code=rows[0].code),
        )


def _words(figures: Figures) -> Words:
    name = f"`{figures.function}` ({_place(figures.file, figures.line)})"
    times = plural(figures.compilations, "time")
    if figures.compile_ns is None:
        claim = f"{name} is compiled {times}, by prediction"
    else:
        claim = f"{name} was compiled {times}, which took {duration(figures.compile_ns)}"
    if figures.limit_reached:
        claim += "; then PyTorch's limit was reached, and calls with other arguments run uncompiled"
    evidence = tuple(
        f"{plural(guard.recompilations, 'recompilation')}: {_guard(guard)}, {_place(guard.file, guard.line)}"
        for guard in figures.guards
    )
    kinds = dict.fromkeys(guard.kind for guard in figures.guards)
    advice = tuple(part for kind in kinds for part in against_recompilation(kind))
    return Words(claim, evidence, advice)


def _guard(guard: FailedGuard) -> str:
    if guard.guard is not None:
        return guard_in_words(guard.guard)
    return change_in_words(guard.kind, guard.value, guard.dimension, guard.before, guard.now)


def _place(file: str | None, line: int | None) -> str:
    return "line unknown" if file is None or line is None else place(file, line)


RULE: Rule[Figures] = Rule(
    name="recompilations",
    topic="compute",
    figures=Figures,
    told_apart_by=("function", "file", "line"),
    words=_words,
    in_trace=_find,
    in_study=per_variant(_find_predicted),
    condition="torch.compile compiled a function again at least {least} times, or its limit of recompilations was "
    "reached, by the record beside the trace, or by the prediction where no run compiled anything; a warning where the "
    "limit was reached",
    thresholds={"least": _LEAST},
    advice=advise("Keep what the guard looks at the same from call to call."),
    counter_check="Run more steps: recompilations that stop in the warm-up cost only the start. "
    "`TORCH_LOGS=recompiles` prints each.",
)
