"""Inside the program: predicts the syncs of some of its steps on a CUDA device, without one.

The virtual device exists from the import of PyTorch, so that the program chooses it as it would a GPU, to the end of
the process, whose exit handlers may use it. Syncs are counted over several steps: programs log only now and then.
"""

import atexit
import re
from functools import partial
from typing import Final

from steptrace.engine.frames import hook_fault
from steptrace.engine.measure import Phases
from steptrace.launch.probe import Probe
from steptrace.predict import Prediction, backend, predict_syncs
from steptrace.predict.fault import fault_report
from steptrace.predict.tensor import LIMIT

#: What an error begins with that says what cannot be followed.
_LIMIT: Final = LIMIT.partition("{")[0]
#: Matches errors about a missing GPU.
_NAMES_GPUS: Final = re.compile(r"device ordinal|\bgpus?\b|\bcuda:\d", re.IGNORECASE)


def predict(probe: Probe) -> Phases:
    """Count syncs over the steps after the warm-up."""
    backend.machine.gpus = probe.settings.gpus
    manager = predict_syncs()
    syncs = manager.__enter__()
    probe.hooks.in_closure = syncs.outside_optimizer
    probe.fault_of = partial(_fault_of, probe)
    atexit.register(manager.__exit__, None, None, None)  # after all that the program itself registers
    by_step: list[int] = []
    warmup: list[int] = []
    complete = Prediction.of(syncs)
    try:
        left = probe.settings.warmup
        while left or len(by_step) < probe.settings.steps:
            probe.progress("warm-up", probe.settings.warmup - left, probe.settings.warmup)
            if not left:
                probe.progress("followed", len(by_step), probe.settings.steps)
            before = syncs.total
            step = yield
            syncs.settle()
            if step.new_leader:  # from now on another optimizer ends the steps: start again
                left = probe.settings.warmup
                by_step.clear()
                warmup.clear()
            if left:
                left -= 1
                # The first step has the set-up before it: weights are copied to the device then.
                set_up = 0 if warmup else sum(site.count for site in syncs.sites if site.phase == "data")
                warmup.append(syncs.total - before - set_up)
                syncs.reset()
            else:
                by_step.append(syncs.total - before)
                complete = Prediction.of(syncs)
        probe.progress("followed", len(by_step), probe.settings.steps)
    finally:  # an unfinished step at an early end does not count
        probe.record["prediction"] = complete.to_json() | {"by_step": by_step, "warmup_by_step": warmup}


def _fault_of(probe: Probe, error: BaseException) -> str | None:
    """What to report of a limit of predictions or a bug in them; marks an error that more virtual GPUs may mend."""
    if _NAMES_GPUS.search(str(error)):
        probe.mark("lacks_gpus")
    return str(error) if str(error).startswith(_LIMIT) else fault_report(error) or hook_fault(error)
