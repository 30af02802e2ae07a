"""PyTorch's own warnings of syncs, operator by operator. Needs PyTorch and the standard library only.

The mode and the filters for warnings are the process's, and are put back after each step.
"""

import linecache
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from statistics import median
from types import FrameType
from typing import Any, Final

import torch

from steptrace.train.op_recorder import OpLine, OpLineRecorder, Site, calling_site, trace_file_name

#: What the warning says (c10/cuda/CUDAFunctions.cpp).
MESSAGE: Final = "called a synchronizing CUDA operation"
#: What a process's first change of the mode warns of; docs/syncs.md says it in more words.
_INCOMPLETE: Final = "Synchronization debug mode is a prototype feature"


class SyncWatcher(OpLineRecorder):  # type: ignore[no-untyped-call]
    """Notes the operator and the line of every warning that contains `message`, one list a step."""

    def __init__(self, message: str = MESSAGE) -> None:
        super().__init__()
        self.by_step: list[list[OpLine]] = []
        self._message = message
        self._running: OpLine | None = None

    @contextmanager
    def step(self) -> Generator[None]:
        """Watch one step; where the process uses CUDA, PyTorch warns meanwhile."""
        self.by_step.append([])
        cuda: Any = torch.cuda
        before = cuda.get_sync_debug_mode() if cuda.is_initialized() else None
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            shown = warnings.showwarning

            def note(message: Any, *details: Any, **more: Any) -> None:
                if self._message in str(message):
                    self.by_step[-1].append(self._running or OpLine("", None, None, _site_of_warning()))
                elif _INCOMPLETE not in str(message):
                    shown(message, *details, **more)

            warnings.showwarning = note
            try:
                with self:
                    if before is not None:
                        cuda.set_sync_debug_mode("warn")
                    yield
            finally:
                if before is not None and not cuda._is_in_bad_fork():  # as a loader's worker is, forked meanwhile
                    cuda.set_sync_debug_mode(before)

    def run(self, operator: Callable[[], Any]) -> Any:
        """Run one operator with its warnings raised here, whatever has called it."""
        self._running = self.lines[-1]
        results: list[Any] = []

        # C++ holds a warning back until the function that Python called returns; in the backward pass that is
        # `.backward()` itself. apply_ is such a function, and one that calls back, so warnings come out when it ends.
        def call(value: float) -> float:
            results.append(operator())
            return value

        torch.zeros(1, device="cpu").apply_(call)
        self._running = None
        return results[0]


def _site_of_warning() -> Site | None:
    """The program's line that is running, from outside the machinery of warnings."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename in (__file__, warnings.__file__):
        frame = frame.f_back
    return calling_site(frame)


def summary(by_step: list[list[OpLine]]) -> dict[str, Any]:
    """The content of warned_syncs.json.

    Returns:
        `steps`, `count` over all of them, `per_step` (median), `by_step`, and `sites` with `file, line, function, code,
        op, label, phase` (null where not known) and `count` over all steps, in the order of their first warning.
    """
    counts = [len(lines) for lines in by_step]
    found = Counter(line for lines in by_step for line in lines)
    return {
        "steps": len(by_step),
        "count": sum(counts),
        "per_step": median(counts),
        "by_step": counts,
        "sites": [_site(line) | {"count": count} for line, count in found.items()],
    }


def _site(line: OpLine) -> dict[str, Any]:
    site = line.site
    return {
        "file": trace_file_name(site.path) if site else None,
        "line": site.line if site else None,
        "function": site.function if site else None,
        "code": (linecache.getline(site.path, site.line).strip() or None) if site else None,
        "op": line.op or None,
        "label": line.label,
        "phase": line.phase,
    }
