"""Python frames of a trace: parses their names, and selects the site of an event.

Kineto names a frame `file(line): function`, where the line is that of the function's `def`, and files lie relative to
the entries of `sys.path`. Built-ins, `nn.Module` and frozen modules appear as pseudo-frames.
"""

import re
import sys
from dataclasses import dataclass
from typing import Final

import numpy as np

from steptrace.intervals import Ints
from steptrace.trace.columns import Mask, map_names, nearest, take
from steptrace.trace.model import Trace

_FRAME = re.compile(r"^(?P<file>[^<].*?)\((?P<line>\d{1,9})\): (?P<function>.+)\Z", re.DOTALL)
_TORCH = re.compile(r"^(?:.*/)?(?:torch|functorch|torchgen)/")
#: steptrace's own code, but not its workloads, which are the code under study.
_PIPELINE = re.compile(r"^(?:.*/(?:src|site-packages)/)?steptrace/(?!workloads/)")
#: The loop of a study's own trainings.
_LOOP: Final = re.compile(rf"{_PIPELINE.pattern}train/loop")
#: The probe, whose frames are between the program and PyTorch.
_PROBE = re.compile(r"^(?:.*/(?:src|site-packages)/)?steptrace/launch/")
_STDLIB_FOLDER = re.compile(r"/lib/python3\.\d+/(?!site-packages/|dist-packages/)")
_STDLIB = sys.stdlib_module_names

#: The function of a frame that runs a file's own code. A trace has no line of it but the file's first.
MODULE: Final = "<module>"

#: A frame's role in the search for a site.
USER, PIPELINE, STDLIB, SKIP = range(4)


@dataclass(frozen=True)
class Frame:
    """One Python function of a trace.

    `line` is that of its `def`; of the line that executed an operator, that line; None if no line is known. `program`
    is the program's file and line that lead to a recorded line in a library.
    """

    file: str
    line: int | None
    function: str
    program: tuple[str, int] | None = None


def parse_frame(name: str) -> Frame | None:
    """The file, line and function of a frame's name, None for a pseudo-frame."""
    match = _FRAME.match(name)
    if match is None:
        return None
    return Frame(match["file"].replace("\\", "/"), int(match["line"]), match["function"])


def frame_role(name: str) -> int:
    """`USER`, `PIPELINE`, `STDLIB`, or `SKIP` for PyTorch's own and pseudo-frames."""
    frame = parse_frame(name)
    if frame is None or frame.file.startswith("nn.Module") or _TORCH.match(frame.file) or _PROBE.match(frame.file):
        return SKIP
    if _PIPELINE.match(frame.file):
        return PIPELINE
    first = frame.file.split("/")[0].removesuffix(".py")
    if _STDLIB_FOLDER.search(frame.file) or first in _STDLIB:
        return STDLIB
    return USER


def is_own_loop(name: str) -> bool:
    """Whether a frame is of the loop that trains a study's variants."""
    return _LOOP.match(name) is not None


def site_frames(trace: Trace, innermost: Ints) -> Ints:
    """From each frame outwards, the first that is neither PyTorch's nor the pipeline's own; -1 if there is none.

    The search ends at the pipeline's own code: frames outside it only started it. A file with the name of a standard
    library module is used only as a last resort.
    """
    frames = trace.frames
    if len(frames) == 0:
        return np.full(len(innermost), -1, dtype=np.int64)
    parent = frames["parent"].to_numpy(dtype=np.int32, na_value=-1)
    role = map_names(frames["name"], frame_role, np.int8)

    def first(wanted: Mask, kind: int) -> Ints:
        frame = take(nearest(parent, wanted), innermost)
        return np.where((frame >= 0) & (role[frame] == kind), frame, -1)

    strict = first((role == USER) | (role == PIPELINE), USER)
    return np.where(strict >= 0, strict, first(role != SKIP, STDLIB))
