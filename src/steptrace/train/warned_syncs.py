"""Syncs that PyTorch itself warns of: a few more steps under `torch.cuda.set_sync_debug_mode("warn")`.

A third count beside the prediction and the trace. By its documentation PyTorch does not warn of every sync: none of
`torch.cuda.synchronize`, events, or what happens inside other libraries. On the other hand it knows the line.

The mode and the filters for warnings are the process's, so this comes last of all, and both are put back. The steps run
under the same recorder as in `lines.py`, by which a warning in the backward pass belongs to a line of the forward pass.
"""

import linecache
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from types import FrameType
from typing import Any, Final

import torch

from steptrace.files import write_json
from steptrace.record import WARNED_SYNCS_FILE
from steptrace.train.lines import OpLine, OpLineRecorder, Site, calling_site, trace_file_name
from steptrace.train.loop import Training, synchronize, train_step

#: What the warning says (c10/cuda/CUDAFunctions.cpp).
MESSAGE: Final = "called a synchronizing CUDA operation"
#: What a process's first change of the mode warns of; the docstring above says it in more words.
_INCOMPLETE: Final = "Synchronization debug mode is a prototype feature"
#: Steps watched; a number that varies between them would be worth knowing.
STEPS: Final = 2
#: A watched step takes seven times as long as a step. Where one takes longer than this (seconds), it is the only one.
_LONG_S: Final = 5.0


class SyncWatcher(OpLineRecorder):  # type: ignore[no-untyped-call]
    """Notes the operator and the line of every warning that contains `message`, one list a step."""

    def __init__(self, message: str = MESSAGE) -> None:
        super().__init__()
        self.by_step: list[list[OpLine]] = []
        self._message = message
        self._running: OpLine | None = None

    @contextmanager
    def step(self) -> Generator[None]:
        """Watch one step."""
        self.by_step.append([])
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            shown = warnings.showwarning

            def note(message: Any, *details: Any, **more: Any) -> None:
                if self._message in str(message):
                    self.by_step[-1].append(self._running or OpLine("", None, None, _site_of_warning()))
                elif _INCOMPLETE not in str(message):
                    shown(message, *details, **more)

            warnings.showwarning = note
            with self:
                yield

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


def record_warned_syncs(training: Training, out: Path) -> tuple[str, ...]:
    """Run `STEPS` more steps and write `warned_syncs.json` into `out`; without a GPU do nothing.

    Returns warnings: a step that cannot be watched leaves no file.
    """
    if training.device.type != "cuda":
        return ()
    watcher = SyncWatcher()
    before = torch.cuda.get_sync_debug_mode()
    synchronize(training.device)
    try:
        started = time.monotonic()
        for number in range(STEPS):
            if number and time.monotonic() - started > _LONG_S:
                break
            with watcher.step():
                torch.cuda.set_sync_debug_mode("warn")
                train_step(training)
                torch.cuda.set_sync_debug_mode(before)
    except Exception as error:
        # Of any kind: as in lines.py, a whole run's timings must not depend on it.
        reason = next(iter(str(error).splitlines()), "")
        return (f"PyTorch's own check for syncs was left out: {type(error).__name__}: {reason}",)
    finally:
        torch.cuda.set_sync_debug_mode(before)
    write_json(out / WARNED_SYNCS_FILE, summary(watcher.by_step))
    return ()


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
