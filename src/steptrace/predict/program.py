"""What a program tells a prediction of itself: its labels, its batches, and the lines that its warnings belong to."""

import re
import warnings
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import dataloader

from steptrace.predict.places import running_line
from steptrace.predict.recorder import Syncs

_OURS = f"{Path(__file__).parent}/"
#: Warnings about a missing GPU, and about attention that is not compiled: neither holds for the program itself.
_NOT_SO_ON_CUDA = re.compile(
    r"^CUDA initialization: |GetDeviceCount\(?\)? failed|Can't initialize NVML|^flex_attention called without"
)
#: The label of a step in a program that profiles itself: one of its own for each step, which says nothing of a place.
_PROFILER_STEP = "ProfilerStep#"
#: What replaces functions of PyTorch during a prediction, by owner and name.
Replacements = dict[tuple[Any, str], Any]


def labels(recorder: Syncs) -> Replacements:
    """Let record_function tell the recorder which block is running."""
    owner = torch.autograd.profiler.record_function
    enter, leave = owner.__enter__, owner.__exit__

    def entering(self: Any) -> Any:
        if not self.name.startswith(_PROFILER_STEP):
            recorder.enter(self.name)
        return enter(self)  # type: ignore[no-untyped-call]

    def leaving(self: Any, *error: Any) -> Any:
        if not self.name.startswith(_PROFILER_STEP):
            recorder.leave()
        return leave(self, *error)

    return {(owner, "__enter__"): entering, (owner, "__exit__"): leaving}


def batches(recorder: Syncs) -> Replacements:
    """Let loaders tell the recorder of each batch."""
    owner = dataloader._BaseDataLoaderIter
    load = owner.__next__

    @wraps(load)
    def __next__(self: Any) -> Any:  # noqa: N807
        batch = load(self)
        recorder.batch_arrives()
        return batch

    return {(owner, "__next__"): __next__}


def warnings_at_lines() -> Replacements:
    """Warnings of PyTorch's C++ name the program's line, not ours; those that CUDA would not give are silent."""
    show: Callable[..., None] = warnings._showwarnmsg  # type: ignore[attr-defined]

    def show_at_program_s_line(message: Any) -> None:
        if _NOT_SO_ON_CUDA.search(str(message.message)):
            return
        site = running_line() if message.filename.startswith(_OURS) else None
        if site is not None:
            message.filename, message.lineno = site.file, site.line
        show(message)

    return {(warnings, "_showwarnmsg"): show_at_program_s_line}
