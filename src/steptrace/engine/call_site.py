"""Which line of a program is running: its innermost frame that is neither PyTorch's nor the pipeline's own.

Needs PyTorch and the standard library only.
"""

import linecache
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Final, NamedTuple

import torch
from torch.profiler.python_tracer import _prefix_regex

import steptrace

_PIPELINE: Final = f"{Path(steptrace.__file__).parent}/"
_WORKLOADS: Final = f"{_PIPELINE}workloads/"
#: The module that drives a prediction; frames outside it only started it.
_DRIVER: Final = f"{_PIPELINE}predict/drive.py"
#: Files to skip: PyTorch's, the virtual device's and the probe's.
LOOK_PAST: Final = (f"{Path(torch.__file__).parent}/", f"{_PIPELINE}predict/", f"{_PIPELINE}launch/")
#: Folders of Python's own modules, and of the scripts of installed packages.
_INSTALLED: Final = tuple(f"{sysconfig.get_path(name)}/" for name in ("stdlib", "scripts"))
#: Most lines in the text of a site.
_LONGEST: Final = 10


class Site(NamedTuple):
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


def calling_site(frames: Iterable[Site], generated: str = "<") -> Site | None:
    """The program's innermost frame.

    None once the pipeline's own code is reached: frames outside it only started it. The workloads count as the user's
    code. Frames without a file whose names begin with `generated` are skipped.
    """
    for site in frames:
        if site.file == _DRIVER:
            return None
        if not site.file.startswith((*LOOK_PAST, generated)):
            return None if site.file.startswith(_PIPELINE) and not site.file.startswith(_WORKLOADS) else site
    return None


def is_library(file: str) -> bool:
    """Whether a file is Python's, an installed package's, or the script that such a package is started by."""
    return "/site-packages/" in file or "/dist-packages/" in file or file.startswith(_INSTALLED)


def program_site(frames: Iterable[Site], site: Site | None) -> Site | None:
    """Of a site in a library the innermost line outside of libraries; None of any other."""
    if site is None or not is_library(site.file):
        return None
    return calling_site(frame for frame in frames if not is_library(frame.file))


def frames_from(frame: FrameType | None, until: str | None = None) -> Iterator[Site]:
    """The running frames from one outwards, up to a function called `until`."""
    while frame is not None and frame.f_code.co_name != until:
        yield Site(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
        frame = frame.f_back


def trace_file_name(path: str) -> str:
    """A file's name as Kineto writes it into a trace: without the entry of `sys.path` that it lies under."""
    # PyTorch's own list of these entries, so that both agree by construction.
    prefix = next((prefix for prefix in _prefix_regex() if path.startswith(prefix)), "")
    return path.removeprefix(prefix)
