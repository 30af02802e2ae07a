"""Which line of the program an operator call belongs to.

In the forward pass it is on the Python stack. In the backward pass, which PyTorch runs in a thread of its own with no
Python frames, it is the line that created the running autograd node: anomaly mode stores that stack with every node.
"""

import linecache
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple, TypeVar

import torch

_F = TypeVar("_F", bound=Callable[..., object])

_OWN = (f"{Path(torch.__file__).parent}/", f"{Path(__file__).parent}/", "<frozen ")
_TRACE_LINE = re.compile(r'\s*File "(?P<file>.+)", line (?P<line>\d+), in (?P<function>.+)')
_BOUNDARIES: set[CodeType] = set()


class Location(NamedTuple):
    """A line of the program; all None if no frame of it was on the stack."""

    file: str | None
    line: int | None
    function: str | None

    @property
    def code(self) -> str | None:
        """The line's text, or None if it cannot be read."""
        if self.file is None or self.line is None:
            return None
        return linecache.getline(self.file, self.line).strip() or None


NOWHERE = Location(None, None, None)


def boundary(function: _F) -> _F:
    """Mark a function of the pipeline that drives a program: frames outside it are nobody's to blame."""
    _BOUNDARIES.add(function.__code__)  # type: ignore[attr-defined]  # a plain function
    return function


def _is_programs(file: str) -> bool:
    return not file.startswith(_OWN)


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None and frame.f_code not in _BOUNDARIES:
        yield frame
        frame = frame.f_back


def _on_stack(frame: FrameType | None) -> Location:
    for candidate in _outwards(frame):
        code = candidate.f_code
        if _is_programs(code.co_filename):
            return Location(code.co_filename, candidate.f_lineno, code.co_name)
    return NOWHERE


def _of_node(node: object) -> Location:
    """The line that created an autograd node, from the stack (outermost first) that anomaly mode has stored."""
    metadata = getattr(node, "metadata", None) or {}
    boundaries = {(code.co_filename, code.co_name) for code in _BOUNDARIES}
    for entry in reversed(metadata.get("traceback_") or []):
        found = _TRACE_LINE.match(entry)
        if not found or (found["file"], found["function"]) in boundaries:
            return NOWHERE
        if _is_programs(found["file"]):
            return Location(found["file"], int(found["line"]), found["function"])
    return NOWHERE


def locate(owner: int) -> tuple[Location, str]:
    """The program's line that is running now, and its phase (`forward` or `backward`).

    `owner` is the thread in which the prediction was started; it is waiting in `.backward()` while autograd's own
    thread runs, and its line is what is left for a node that was created before.
    """
    node = torch._C._current_autograd_node()
    if node is None:
        return _on_stack(sys._getframe(1)), "forward"
    # A backward written in Python, a hook or a recomputation has frames of its own, inside the call of the engine.
    inside = []
    for frame in _outwards(sys._getframe(1)):
        if frame.f_code.co_name == "_engine_run_backward":
            break
        inside.append(frame)
    own = next((f for f in inside if _is_programs(f.f_code.co_filename)), None)
    if own is not None and not own.f_code.co_filename.endswith("threading.py"):
        return Location(own.f_code.co_filename, own.f_lineno, own.f_code.co_name), "backward"
    found = _of_node(node)
    if found is NOWHERE:
        found = _on_stack(sys._current_frames().get(owner))
    return found, "backward"
