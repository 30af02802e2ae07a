"""The source files recorded beside a trace, and the lines of their functions."""

import ast
from dataclasses import dataclass, field, replace
from functools import lru_cache

import pandas as pd

from steptrace.trace.names import MODULE, Frame


@dataclass(frozen=True)
class SourceLines:
    """The files recorded beside a trace: the `op_lines` table, and each source file's text. Either may be absent.

    Files named in a trace are never read from this machine.
    """

    op_lines: pd.DataFrame | None = None
    sources: dict[str, str] = field(default_factory=dict, repr=False)

    def code(self, frame: Frame) -> str | None:
        """The recorded text of a frame's line.

        None without one, and if the text is of another matching file name without such a function at the line.
        """
        unnamed = frame.function.startswith("<")  # a lambda, a module's own code
        if frame.file not in self.sources and not unnamed and self.begins(frame) is None:
            return None
        lines = (self._text(frame.file) or "").splitlines()
        return lines[frame.line - 1].strip() if frame.line and frame.line <= len(lines) else None

    def definition(self, frame: Frame) -> Frame:
        """The frame with the first line of its function, if the text of its file is recorded.

        A trace has that line, too, except for functions that ran when the profiler started: theirs is the current line.
        Code outside of functions has no such line. A file name that only ends like a recorded one may be another file:
        `lib/model.py` beside `model.py`.
        """
        if frame.function == MODULE:
            return replace(frame, line=None)
        unsure = frame.file not in self.sources and any(same_file(name, frame.file) for name in self.sources)
        return frame if unsure else replace(frame, line=self.begins(frame) or frame.line)

    def begins(self, frame: Frame) -> int | None:
        """The first line of the frame's function; None if the text has no such function around the frame's line."""
        text = self._text(frame.file)
        if text is None:
            return None
        if frame.function == MODULE:
            return 1
        name = frame.function.split(".")[-1]
        line = frame.line or 0
        around = (first for found_name, first, last in _functions(text) if found_name == name and first <= line <= last)
        return max(around, default=None)

    def _text(self, file: str) -> str | None:
        """The text recorded under a file's name, or else under a matching one."""
        alike = (name for name in self.sources if same_file(name, file))
        name = file if file in self.sources else next(alike, None)
        return None if name is None else self.sources[name]


@lru_cache(maxsize=64)
def _functions(text: str) -> list[tuple[str, int, int]]:
    """A file's functions: name, first line, decorators included, and last line."""
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    return [
        (node.name, min([node.lineno, *(d.lineno for d in node.decorator_list)]), node.end_lineno or node.lineno)
        for node in nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def same_file(name: str, other: str) -> bool:
    """Whether two names can belong to one file: they are equal, or one is the end of the other."""
    a, b = name.split("/"), other.split("/")
    shared = min(len(a), len(b))
    return a[-shared:] == b[-shared:]
