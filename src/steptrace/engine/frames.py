"""Finds the program's line in a stack, and decides whether an error is a fault of the program or of steptrace.

Needs PyTorch and the standard library only.
"""

import ast
import itertools
import linecache
import re
import sysconfig
import traceback
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Final, NamedTuple

import torch

from steptrace.torch_names import private
from steptrace.version import VERSION

#: Returns the folders that the profiler leaves out of file names.
_PREFIXES: Final[Any] = private("torch.profiler.python_tracer._prefix_regex") or list
_PIPELINE: Final = f"{Path(__file__).parents[1]}/"
#: The folder of PyTorch.
TORCH: Final = f"{Path(torch.__file__).parent}/"
_PYTHON: Final = f"{sysconfig.get_path('stdlib')}/"
_WORKLOADS: Final = f"{_PIPELINE}workloads/"
#: The module that drives a prediction; its callers only started it.
_DRIVER: Final = f"{_PIPELINE}predict/main.py"
#: Files to skip: PyTorch's, the virtual device's and the probe's.
LOOK_PAST: Final = (TORCH, f"{_PIPELINE}predict/", f"{_PIPELINE}launch/")
#: Folders of Python's own modules, and of the scripts of installed packages.
_INSTALLED: Final = (_PYTHON, f"{sysconfig.get_path('scripts')}/")
#: Methods that PyTorch calls in place of a function, or an operator, whose arguments are of their class.
_IN_PLACE_OF: Final = ("__torch_function__", "__torch_dispatch__")
#: A line of such a method that passes the call on.
_CALLS_IT: Final = re.compile(r"(?<!def )\b(__torch_(function|dispatch)__|func|fn|function|op)\(")
#: The most lines in the text of a site.
_LONGEST: Final = 10
#: Modules that run inside a program that is measured or captured.
OURS: Final = (f"{_PIPELINE}engine/", f"{_PIPELINE}launch/")
_HOOKS: Final = f"{_PIPELINE}launch/hooks.py"
#: The module that starts the probe; errors in frames below it come from modules that the program imports.
_INJECT: Final = f"{_PIPELINE}launch/inject/"
#: A call by a plain name, as our wrappers call the functions that they wrap.
_PLAIN_CALL: Final = re.compile(r"(\w+)\(")
#: The most frames in a report.
_FRAMES: Final = 4
#: A frame and its running line.
Where = tuple[FrameType, int]


class SourceLine(NamedTuple):
    """A line of source; `file` is the file's absolute path."""

    file: str
    line: int
    function: str

    @property
    def code(self) -> str | None:
        """The line's text, up to where its brackets close; None if it cannot be read."""
        text = linecache.getline(self.file, self.line).strip()
        for line in range(self.line + 1, self.line + _LONGEST):
            if all(text.count(opened) <= text.count(closed) for opened, closed in ("()", "[]", "{}")):
                break
            text = f"{text} {linecache.getline(self.file, line).strip()}"
        return text or None


def passes_on(site: SourceLine) -> bool:
    """Whether a line only calls the function of PyTorch that was called: the line that called that one says more."""
    return site.function in _IN_PLACE_OF and _calls_it(site)


@cache
def _calls_it(site: SourceLine) -> bool:
    code = re.sub(r"^elif\b", "if", site.code or "")
    if _CALLS_IT.search(code) is None:
        return False
    try:
        nodes = list(ast.walk(ast.parse(f"{code} pass" if code.endswith(":") else code)))
    except SyntaxError:  # a part of a statement
        return True
    # A line that goes on with the result may wait for it: a method of it, or a branch on it.
    used = [node.value for node in nodes if isinstance(node, ast.Attribute)]
    used += [node.test for node in nodes if isinstance(node, ast.If | ast.While | ast.Assert)]
    return not any(_CALLS_IT.search(ast.unparse(node)) for node in used)


def calling_site(frames: Iterable[SourceLine], generated: str = "<") -> SourceLine | None:
    """The program's innermost frame; None if steptrace's own code is reached first, since its callers only started it.

    The workloads count as the user's code. Frames of generated code, whose file names begin with `generated`, are
    skipped, and so are lines that only pass a call on.
    """
    for site in frames:
        if site.file == _DRIVER:
            return None
        if not site.file.startswith((*LOOK_PAST, generated)) and not passes_on(site):
            return None if site.file.startswith(_PIPELINE) and not site.file.startswith(_WORKLOADS) else site
    return None


def is_library(file: str) -> bool:
    """Whether a file belongs to Python or an installed package, or is the script that starts such a package."""
    return "/site-packages/" in file or "/dist-packages/" in file or file.startswith(_INSTALLED)


def is_python_s_own(file: str) -> bool:
    """Whether a file is one of Python's own modules."""
    return file.startswith(_PYTHON) and "/site-packages/" not in file


def program_site(frames: Iterable[SourceLine], site: SourceLine | None) -> SourceLine | None:
    """The innermost line outside of libraries, if `site` is in a library; otherwise None."""
    if site is None or not is_library(site.file):
        return None
    return calling_site(frame for frame in frames if not is_library(frame.file))


def frames_from(frame: FrameType | None, until: str | None = None) -> Iterator[SourceLine]:
    """The running frames from `frame` outwards, up to a function called `until`, without it."""
    while frame is not None and frame.f_code.co_name != until:
        yield SourceLine(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
        frame = frame.f_back


def trace_file_name(path: str) -> str:
    """A file's name as in a Kineto trace: without the entry of `sys.path` that contains the file."""
    # The list is PyTorch's own, so that both agree by construction.
    prefix = next((prefix for prefix in _PREFIXES() if path.startswith(prefix)), "")
    return path.removeprefix(prefix)


def hook_fault(error: BaseException) -> str | None:
    """The report of an error inside a program if it is a fault of steptrace; None if it is the program's own.

    It is steptrace's fault if the innermost frame outside of PyTorch and Python is steptrace's. The exception is a
    function that the program or PyTorch passed in, and that failed there.
    """
    frames = outside_pytorch(error)
    if not frames or not _file(frames[-1][0]).startswith(OURS) or _file(frames[-1][0]).startswith(_INJECT):
        return None
    called = _PLAIN_CALL.match(_failing(error.__traceback__, frames[-1][0]))
    code = frames[-1][0].f_code
    if called is not None and called[1] in (*code.co_varnames, *code.co_freevars):
        return None
    return report(error, frames)


def contained_fault(error: BaseException) -> str:
    """The report of an error of steptrace that did not reach the program; call this where the error is caught."""
    inner = outside_pytorch(error)
    outer = [
        (frame, line)
        for frame, line in traceback.walk_stack(None)
        if not _looked_past(_file(frame)) and not _file(frame).startswith(OURS)
    ]
    return report(error, [*reversed(outer), *(inner[1:] or inner)])


def outside_pytorch(error: BaseException) -> list[Where]:
    """An error's frames, with their lines, without those of PyTorch and Python, since their callers are at fault."""
    stack = traceback.walk_tb(error.__traceback__)
    return [(frame, line) for frame, line in stack if not _looked_past(_file(frame))]


def report(error: BaseException, frames: Sequence[Where], operator: str = "") -> str:
    """The text of a report: versions, operator, error and the innermost frames."""
    # Our wrappers call each other; only the innermost of them is shown.
    follow = itertools.zip_longest(frames, frames[1:], fillvalue=None)
    frames = [
        pair
        for pair, inner in follow
        if pair is not None and not (inner is not None and _file(pair[0]) == _file(inner[0]) == _HOOKS)
    ]
    last = ", ".join(f"{Path(_file(frame)).name}:{number}" for frame, number in frames[-_FRAMES:])
    return (
        f"this is a fault of steptrace, not of the program; please report: steptrace {VERSION}, torch "
        f"{torch.__version__}{operator}, {type(error).__name__}: {error}, at {last}"
    )


def _file(frame: FrameType) -> str:
    return frame.f_code.co_filename


def _looked_past(file: str) -> bool:
    return file.startswith((TORCH, "<frozen ")) or is_python_s_own(file)


def _failing(trace: TracebackType | None, frame: FrameType) -> str:
    """The text of the expression that failed in a frame, up to the end of its line; empty if not found."""
    while trace is not None and trace.tb_frame is not frame:
        trace = trace.tb_next
    if trace is None:
        return ""
    line, _, column, _ = list(frame.f_code.co_positions())[trace.tb_lasti // 2]
    text = linecache.getline(_file(frame), line or trace.tb_lineno).encode()
    return text[column or 0 :].decode(errors="replace")
