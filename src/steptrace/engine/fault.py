"""Whether an error that ended a program is one of steptrace, whose hooks and recorders it calls; what to report then.

Needs PyTorch and the standard library only.
"""

import linecache
import re
import sysconfig
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Final

import torch

from steptrace import __version__

#: What runs inside of a program that is measured or captured.
_OURS: Final = tuple(f"{Path(__file__).parents[1] / name}/" for name in ("engine", "launch"))
#: Its first import: what it runs there are the program's modules.
_INJECT: Final = f"{Path(__file__).parents[1] / 'launch' / 'inject'}/"
_TORCH: Final = f"{Path(torch.__file__).parent}/"
_PYTHON: Final = f"{sysconfig.get_path('stdlib')}/"
#: A call by a plain name, as our wrappers call what they wrap.
_PLAIN_CALL: Final = re.compile(r"(\w+)\(")
#: Frames of a report.
_FRAMES: Final = 4

#: A frame and its running line.
Where = tuple[FrameType, int]


def hook_fault(error: BaseException) -> str | None:
    """What to report where code of steptrace has failed inside of a program; None where the program has.

    It is steptrace's fault if its frame is the innermost one outside of PyTorch and Python, unless a function that the
    program or PyTorch gave it has failed there.
    """
    frames = outside_pytorch(error)
    if not frames or not _file(frames[-1][0]).startswith(_OURS) or _file(frames[-1][0]).startswith(_INJECT):
        return None
    called = _PLAIN_CALL.match(_failing(error.__traceback__, frames[-1][0]))
    code = frames[-1][0].f_code
    if called is not None and called[1] in (*code.co_varnames, *code.co_freevars):
        return None
    return report(error, frames)


def outside_pytorch(error: BaseException) -> list[Where]:
    """An error's frames that are neither PyTorch's nor Python's own, with their lines: who has called those decides."""
    stack = traceback.walk_tb(error.__traceback__)
    return [(frame, line) for frame, line in stack if not _looked_past(_file(frame))]


def report(error: BaseException, frames: Sequence[Where], operator: str = "") -> str:
    """The text of a report: versions, operator, error and the innermost frames."""
    last = ", ".join(f"{Path(_file(frame)).name}:{number}" for frame, number in frames[-_FRAMES:])
    return (
        f"this is a fault of steptrace, not of the program; please report: steptrace {__version__}, torch "
        f"{torch.__version__}{operator}, {type(error).__name__}: {error}, at {last}"
    )


def _file(frame: FrameType) -> str:
    return frame.f_code.co_filename


def _looked_past(file: str) -> bool:
    return file.startswith((_TORCH, "<frozen ")) or (file.startswith(_PYTHON) and "/site-packages/" not in file)


def _failing(trace: TracebackType | None, frame: FrameType) -> str:
    """The text of the expression that fails in a frame, from its beginning to the end of its line."""
    while trace is not None and trace.tb_frame is not frame:
        trace = trace.tb_next
    if trace is None:
        return ""
    line, _, column, _ = list(frame.f_code.co_positions())[trace.tb_lasti // 2]
    text = linecache.getline(_file(frame), line or trace.tb_lineno).encode()
    return text[column or 0 :].decode(errors="replace")
