"""Inside the program: predicts the syncs of some of its steps on a CUDA device, without one.

The virtual device is there from the moment PyTorch is imported, so the program chooses it as it would choose a GPU, and
until the process ends, since what it does at its end may use it. Syncs are counted over several steps, because a
program logs every so often.
"""

import atexit
import os
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

from steptrace.engine.measure import Phases
from steptrace.launch.probe import Probe
from steptrace.launch.settings import FAULT
from steptrace.predict import Prediction, collectives, predict_syncs
from steptrace.predict.fault import fault_report

#: What an error says of a GPU that is not there.
_NAMES_GPUS: Final = re.compile(r"device ordinal|\bgpus?\b|\bcuda:\d", re.IGNORECASE)


def follow(probe: Probe) -> Phases:
    """Leave out the warm-up, and count over the steps after it."""
    collectives.machine.gpus = probe.settings.gpus
    manager = predict_syncs()
    syncs = manager.__enter__()
    probe.hooks.in_closure = syncs.outside_optimizer
    atexit.register(manager.__exit__, None, None, None)  # after all that the program itself registers
    atexit.register(_look_at_error, probe)
    by_step: list[int] = []
    warmup: list[int] = []
    found = Prediction.of(syncs)
    try:
        left = probe.settings.warmup
        while left or len(by_step) < probe.settings.steps:
            before = syncs.total
            step = yield
            if step.new_leader:  # what ends a step is another optimizer from now on
                left = probe.settings.warmup
                by_step.clear()
                warmup.clear()
            if left:
                left -= 1
                warmup.append(syncs.total - before)
                syncs.reset()
            else:
                by_step.append(syncs.total - before)
                found = Prediction.of(syncs)
    finally:  # what a program has begun when it ends early is no step
        probe.record["prediction"] = found.to_json() | {"by_step": by_step, "warmup_by_step": warmup}


def _look_at_error(probe: Probe) -> None:
    """Mark that the program has ended by an error that more virtual GPUs may mend, or that is steptrace's fault."""
    error: BaseException | None = getattr(sys, "last_value", None)
    if error is None:
        return
    if _NAMES_GPUS.search(str(error)):
        probe.mark("lacks_gpus")
    if (report := fault_report(error)) is not None:
        with suppress(OSError):
            Path(probe.settings.out, f"{FAULT}.{os.getpid()}").write_text(report, encoding="utf-8")
