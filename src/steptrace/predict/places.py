"""Finds the line of the program that is running on the virtual device, at every operator.

In the forward pass the line is on the Python stack. In the backward pass the stack shows only the call of the engine,
so the line is the one that created the running autograd node: anomaly mode stores the stack with every node. To do this
in a few microseconds, the kind of a frame's file is looked up by the frame's code object, and a line is computed once
for each instruction. The stack of a thread continues with the stack that started the thread, or gave it its work.
"""

import os
import sys
import threading
from collections.abc import Iterable, Iterator
from traceback import FrameSummary
from types import CodeType, FrameType
from typing import Final

from steptrace.engine.frames import SourceLine, calling_site, is_library, is_python_s_own, passes_on

#: How the interpreter names its own files. The file of a program may have no name.
_INTERPRETER: Final = "<frozen "
#: In the names of PyTorch's own files.
_TORCH: Final = f"{os.sep}torch{os.sep}"
#: The function by which PyTorch starts a backward pass.
_ENGINE: Final = "_engine_run_backward"
#: The kinds of a frame's file: PyTorch's or ours, the pipeline's that started the program, a library's, the program's.
_LOOKED_PAST, _STARTED_BY, _LIBRARY, _PROGRAM = range(4)

#: The kind of a code object's file. The key is the object's identity, since its hash reads all of it; the entry keeps
#: the object alive.
_kinds: dict[int, tuple[int, CodeType]] = {}
#: By code object and instruction.
_sites: dict[tuple[int, int], SourceLine] = {}


class Stack:
    """The places in the program that a stack shows.

    Attributes:
        innermost: the innermost frame that belongs neither to PyTorch nor to the pipeline that started the program.
        program: the innermost of these frames that does not belong to a library either.
        whole: whether no frame of the pipeline lies between the two and the operator.
        region: the call of compiled code in which the operator runs (`steptrace.predict.compiled`), or None.
    """

    __slots__ = ("innermost", "program", "region", "whole")

    def __init__(self, innermost: SourceLine | None, program: SourceLine | None, *, whole: bool) -> None:
        self.innermost = innermost
        self.program = program
        self.whole = whole
        self.region: object = None

    def marked(self, region: object) -> "Stack":
        """The same stack, with the call of compiled code that it lies in."""
        self.region = region
        return self

    def __iter__(self) -> Iterator[str]:
        """The frames as `traceback.format_stack` writes them: PyTorch asks for them where a backward pass fails."""
        for site in dict.fromkeys((self.program, self.innermost)):
            if site is not None:
                yield f'  File "{site.file}", line {site.line}, in {site.function}\n'


class _StartedAt(threading.local):
    """The stack that started this thread, or gave it its work; None for a thread that was there before."""

    stack: Stack | None = None


started_at: Final = _StartedAt()


def stack_of(frame: FrameType | None, until: str | None = None) -> Stack:
    """The frames from one outwards, up to the program's, or to PyTorch's function called `until`."""
    innermost = None
    while frame is not None:
        code = frame.f_code
        try:
            kind = _kinds[id(code)][0]
        except KeyError:
            kind = _kind_of_running(frame)
        if kind == _LOOKED_PAST:
            if code.co_name == until:
                break
        elif kind == _STARTED_BY:
            return Stack(innermost, None, whole=False)
        else:
            site = _sites.get((id(code), frame.f_lasti)) or _site_of(frame)
            if not passes_on(site):
                innermost = innermost or site
                if kind == _PROGRAM:
                    return Stack(innermost, site, whole=True)
        frame = frame.f_back
    return Stack(innermost, None, whole=True)


def running_sites(node: object) -> tuple[SourceLine | None, SourceLine | None]:
    """The line that is running now in this thread, and the innermost one outside of libraries.

    `node` is the running autograd node, None outside of a backward pass.
    """
    innermost = None
    for stack in _stacks_of(node, sys._getframe(1)):
        innermost = innermost or _line_of_stack(stack)
        if innermost is not None and (stack.program is not None or not stack.whole):
            return innermost, stack.program
    return innermost, None


#: The autograd node that adds up the gradients of a parameter.
_ACCUMULATES: Final = "AccumulateGrad"


def region_of(node: object) -> object:
    """The call of compiled code that created an autograd node; None if other code did.

    The node that adds up a parameter's gradients is created by the first operator that takes the parameter, but is
    never compiled.
    """
    if type(node).__name__ == _ACCUMULATES:
        return None
    stored = (getattr(node, "metadata", None) or {}).get("traceback_")
    return stored.region if isinstance(stored, Stack) else None


def _line_of_stack(stack: Stack) -> SourceLine | None:
    """The innermost line of a stack; of Python's own modules none that only passes work on between threads."""
    line = stack.innermost
    begun = started_at.stack
    if begun is None or line is None or not is_python_s_own(line.file):
        return line
    return stack.program if stack is begun or stack.program is not None else None


def place_of_stack(frames: Iterable[FrameSummary]) -> tuple[str | None, int | None, str | None]:
    """File, line and code of the innermost frame of the program; the outermost frame comes first."""
    sites = [(SourceLine(frame.filename, frame.lineno or 0, frame.name), frame.line) for frame in frames]
    for wanted in ((_PROGRAM,), (_PROGRAM, _LIBRARY)):
        for site, code in reversed(sites):
            if _kind(site) in wanted:
                return site.file, site.line, code
    return None, None, None


def is_inside(name: str) -> bool:
    """Whether a function of PyTorch is running in this thread, by its qualified name."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_qualname == name and _TORCH in code.co_filename:
            return True
        frame = frame.f_back
    return False


def running_frame() -> FrameType | None:
    """The innermost running frame that is neither PyTorch's nor the pipeline's own."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        known = _kinds.get(id(frame.f_code))
        kind = _kind_of_running(frame) if known is None else known[0]
        if kind != _LOOKED_PAST:
            return frame if kind != _STARTED_BY else None
        frame = frame.f_back
    return None


def running_line() -> SourceLine | None:
    """The program's line that is running in this thread."""
    return stack_of(sys._getframe(1)).innermost


def _stacks_of(node: object, here: FrameType) -> Iterator[Stack]:
    """The stacks that may hold the line, the best first."""
    if node is not None:
        # A backward written in Python, a hook or a recomputation has frames of its own, inside the call of the engine.
        yield stack_of(here, until=_ENGINE)
        stored = (getattr(node, "metadata", None) or {}).get("traceback_")
        if isinstance(stored, Stack):  # and no text, as of a node that the program made before, in its own anomaly mode
            yield stored
    yield stack_of(here)
    if started_at.stack is not None:
        yield started_at.stack


def _kind_of_running(frame: FrameType) -> int:
    code = frame.f_code
    kind = _kind(SourceLine(code.co_filename, code.co_firstlineno, code.co_name))
    if code.co_filename.startswith("<") and frame.f_globals.get("__name__") != "__main__":
        kind = _LOOKED_PAST  # text that a library has made into a function: it has no line that one could read
    _kinds[id(code)] = kind, code
    return kind


def _kind(site: SourceLine) -> int:
    # Whether it is looked past is seen from a frame of the program behind it.
    behind = SourceLine("program.py", 1, "program")
    calling = calling_site((site, behind), _INTERPRETER)
    if calling is None:
        return _STARTED_BY
    if calling is behind:
        return _LOOKED_PAST
    return _LIBRARY if is_library(site.file) else _PROGRAM


def _site_of(frame: FrameType) -> SourceLine:
    code = frame.f_code
    site = SourceLine(code.co_filename, frame.f_lineno, code.co_name)
    _sites[id(code), frame.f_lasti] = site
    return site
