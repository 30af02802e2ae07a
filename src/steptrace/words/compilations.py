"""What torch.compile did in a measured program, in words."""

from typing import Final

from steptrace import format as fmt
from steptrace.documents.compilations import Compilations
from steptrace.words.compiled import break_in_words, recompiled_in_words

#: Graph breaks and recompilations that the terminal shows, of each.
_MOST: Final = 5


def compilations_in_words(compiled: Compilations) -> str:
    """How much was compiled, and how long that took."""
    compilations = sum(function.compilations for function in compiled.functions)
    return f"torch.compile: {fmt.plural(compilations, 'compilation')} in {fmt.duration_ns(compiled.compile_ns)} in all"


def compilation_lines(compiled: Compilations | None) -> list[str]:
    """The lines on compiled code: its time, graph breaks and recompilations; none where nothing was compiled."""
    if compiled is None:
        return []
    lines = [f"  {compilations_in_words(compiled)}"]
    lines += [f"    {break_in_words(graph_break)}" for graph_break in compiled.breaks[:_MOST]]
    lines += _more(len(compiled.breaks), "graph break")
    lines += [f"    {recompiled_in_words(guard)}" for guard in compiled.recompilations[:_MOST]]
    lines += _more(len(compiled.recompilations), "guard that failed", "guards that failed")
    lines += [
        f"    the limit of recompilations was reached: {fmt.place(function.file, function.line)} {function.function} "
        "runs uncompiled for other arguments"
        for function in compiled.functions
        if function.limit_reached
    ]
    return lines


def _more(found: int, noun: str, nouns: str | None = None) -> list[str]:
    more = found - _MOST
    if more <= 0:
        return []
    return [f"    {more} more {noun if more == 1 else nouns or f'{noun}s'}: in run.json"]
