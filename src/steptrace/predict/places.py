"""Which line of the program is running on the virtual device, asked for at every operator.

In the forward pass it is on the Python stack. In the backward pass, of which that stack shows no more than the call of
the engine, it is the line that created the running autograd node: anomaly mode stores that stack with every node. So
that this takes a few microseconds, the kind of a frame's file is looked up by the frame's code object, and a line is
computed once per instruction. Behind the frames of a thread stand those that started it, or gave it its work.
"""

import sys
import threading
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Final

from steptrace.engine.frames import Site, calling_site, is_library, is_python_s_own

#: As the interpreter calls its own files; a program may be a file without a name.
_INTERPRETER: Final = "<frozen "
#: The function by which PyTorch starts a backward pass.
_ENGINE: Final = "_engine_run_backward"
#: What a frame's file is: PyTorch's or ours, that of the pipeline that started the program, a library's, the program's.
_LOOKED_PAST, _STARTED_BY, _LIBRARY, _PROGRAM = range(4)

#: By the identity of a code object, which is kept alive with the kind of its file; its own hash reads all of it.
_kinds: dict[int, tuple[int, CodeType]] = {}
#: By code object and instruction.
_sites: dict[tuple[int, int], Site] = {}


class Stack:
    """What a stack says of a program's line.

    `innermost` is its innermost frame that is neither PyTorch's nor the pipeline's own, `program` the innermost of
    these that is no library's. `whole`: no frame of the pipeline, which started the program, lies further in than both.
    `region`: the call of compiled code that it lies in, or None (`steptrace.predict.compiled`).
    """

    __slots__ = ("innermost", "program", "region", "whole")

    def __init__(self, innermost: Site | None, program: Site | None, *, whole: bool) -> None:
        self.innermost, self.program, self.whole = innermost, program, whole
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
            innermost = innermost or site
            if kind == _PROGRAM:
                return Stack(innermost, site, whole=True)
        frame = frame.f_back
    return Stack(innermost, None, whole=True)


def running_sites(node: object) -> tuple[Site | None, Site | None]:
    """The line that is running now in this thread, and the innermost one outside of libraries.

    `node` is the running autograd node, None outside of a backward pass.
    """
    innermost = None
    for stack in _stacks_of(node, sys._getframe(1)):
        innermost = innermost or _told(stack)
        if innermost is not None and (stack.program is not None or not stack.whole):
            return innermost, stack.program
    return innermost, None


def region_of(node: object) -> object:
    """The call of compiled code that made an autograd node; None if other code did."""
    stored = (getattr(node, "metadata", None) or {}).get("traceback_")
    return stored.region if isinstance(stored, Stack) else None


def _told(stack: Stack) -> Site | None:
    """The innermost line of a stack; of Python's own modules none that only passes work on between threads."""
    line, begun = stack.innermost, started_at.stack
    if begun is None or line is None or not is_python_s_own(line.file):
        return line
    return stack.program if stack is begun or stack.program is not None else None


def running_line() -> Site | None:
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
    kind = _kind(Site(code.co_filename, code.co_firstlineno, code.co_name))
    if code.co_filename.startswith("<") and frame.f_globals.get("__name__") != "__main__":
        kind = _LOOKED_PAST  # text that a library has made into a function: it has no line that one could read
    _kinds[id(code)] = kind, code
    return kind


def _kind(site: Site) -> int:
    # Whether it is looked past is seen from a frame of the program behind it.
    behind = Site("program.py", 1, "program")
    calling = calling_site((site, behind), _INTERPRETER)
    if calling is None:
        return _STARTED_BY
    if calling is behind:
        return _LOOKED_PAST
    return _LIBRARY if is_library(site.file) else _PROGRAM


def _site_of(frame: FrameType) -> Site:
    code = frame.f_code
    site = _sites[id(code), frame.f_lasti] = Site(code.co_filename, frame.f_lineno, code.co_name)
    return site
