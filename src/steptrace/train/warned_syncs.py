"""Syncs that PyTorch itself warns of: a few more steps under `torch.cuda.set_sync_debug_mode("warn")`.

A third count beside the prediction and the trace. By its documentation PyTorch does not warn of every sync: none of
`torch.cuda.synchronize`, events, or what happens inside other libraries. On the other hand it knows the line.

The mode and the filters for warnings are the process's, so this comes last of all. The steps run
under the same recorder as in `lines.py`, by which a warning in the backward pass belongs to a line of the forward pass.
"""

import time
from pathlib import Path
from typing import Final

from steptrace.files import write_versioned
from steptrace.record import WARNED_SYNCS_FILE
from steptrace.train.loop import Training, synchronize, train_step
from steptrace.train.sync_watcher import SyncWatcher, summary

#: Steps watched; a number that varies between them would be worth knowing.
STEPS: Final = 2
#: A watched step takes seven times as long as a step. Where one takes longer than this (seconds), it is the only one.
_LONG_S: Final = 5.0


def record_warned_syncs(training: Training, out: Path) -> tuple[str, ...]:
    """Run `STEPS` more steps and write `warned_syncs.json` into `out`; without a GPU do nothing.

    Returns warnings: a step that cannot be watched leaves no file.
    """
    if training.device.type != "cuda":
        return ()
    watcher = SyncWatcher()
    synchronize(training.device)
    try:
        started = time.monotonic()
        for number in range(STEPS):
            if number and time.monotonic() - started > _LONG_S:
                break
            with watcher.step():
                train_step(training)
    except Exception as error:
        # Of any kind: as in lines.py, a whole run's timings must not depend on it.
        reason = next(iter(str(error).splitlines()), "")
        return (f"PyTorch's own check for syncs was left out: {type(error).__name__}: {reason}",)
    write_versioned(out / WARNED_SYNCS_FILE, summary(watcher.by_step))
    return ()
