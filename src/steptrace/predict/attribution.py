"""Which line of the program an operator call belongs to.

In the forward pass it is on the Python stack. In the backward pass, of which that stack shows no more than the call of
the engine, it is the line that created the running autograd node: anomaly mode stores that stack with every node.
"""

import linecache
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import torch

import steptrace

_PREDICT = f"{Path(__file__).parent}/"
_PIPELINE = f"{Path(steptrace.__file__).parent}/"
#: Frames to look past: PyTorch's, the virtual device's, a probe's in somebody's program, and the interpreter's own.
LOOK_PAST = (f"{Path(torch.__file__).parent}/", _PREDICT, f"{_PIPELINE}launch/", "<frozen ")
#: Those of the pipeline that drive a program. Whatever lies further out only started it, and is not to blame.
_DRIVER = f"{_PREDICT}drive.py"
_WORKLOADS = f"{_PIPELINE}workloads/"
#: Lines that the text of a place has at most.
_LONGEST = 10
_TRACE_LINE = re.compile(r'\s*File "(?P<file>.+)", line (?P<line>\d+), in (?P<function>.+)')


class Location(NamedTuple):
    """A line of the program; all None if no frame of it was on the stack."""

    file: str | None
    line: int | None
    function: str | None

    @property
    def code(self) -> str | None:
        """The line's text, or None if it cannot be read; `if (` alone says nothing, so to where its brackets close."""
        if self.file is None or self.line is None:
            return None
        text = linecache.getline(self.file, self.line).strip()
        for line in range(self.line + 1, self.line + _LONGEST):
            if all(text.count(opened) <= text.count(closed) for opened, closed in ("()", "[]", "{}")):
                break
            text = f"{text} {linecache.getline(self.file, line).strip()}"
        return text or None


NOWHERE = Location(None, None, None)


def locate(owner: int) -> tuple[Location, str]:
    """The program's line that is running now, and its phase (`forward` or `backward`).

    `owner` is the thread in which the prediction was started; it is in `.backward()` meanwhile, and its line is what is
    left for a node that was created before.
    """
    node = torch._C._current_autograd_node()
    here = sys._getframe(1)
    if node is None:
        return _innermost(_frames(here)), "forward"
    # A backward written in Python, a hook or a recomputation has frames of its own, inside the call of the engine.
    found = _innermost(_frames(here, until="_engine_run_backward"))
    if found is NOWHERE:
        found = _innermost(_stored(node))
    if found is NOWHERE:
        found = _innermost(_frames(sys._current_frames().get(owner)))
    return found, "backward"


def _innermost(frames: Iterable[Location]) -> Location:
    """The first of the frames, from the innermost outwards, that is the program's."""
    for location in frames:
        file = str(location.file)
        if file == _DRIVER:
            return NOWHERE
        if not file.startswith(LOOK_PAST):
            return NOWHERE if file.startswith(_PIPELINE) and not file.startswith(_WORKLOADS) else location
    return NOWHERE


def _frames(frame: FrameType | None, until: str | None = None) -> Iterator[Location]:
    """The running frames from the innermost outwards, up to a function of the given name."""
    while frame is not None and frame.f_code.co_name != until:
        yield Location(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
        frame = frame.f_back


def _stored(node: object) -> Iterator[Location]:
    """The frames that created an autograd node, which anomaly mode has stored from the outermost inwards."""
    for entry in reversed((getattr(node, "metadata", None) or {}).get("traceback_") or []):
        found = _TRACE_LINE.match(entry)
        if found:
            yield Location(found["file"], int(found["line"]), found["function"])
