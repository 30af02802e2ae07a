"""Inside the program: predicts the syncs of some of its steps on a CUDA device, without one.

The virtual device exists from the import of PyTorch, so that the program chooses it as it would a GPU, to the end of
the process, whose exit handlers may use it. Syncs are counted over several steps: programs log only now and then. How
often they do is seen from the conditions that they evaluate in each step (`steptrace.engine.step_counters`).
"""

import atexit
import re
from dataclasses import replace
from functools import partial
from typing import Final

from steptrace.engine.frames import hook_fault
from steptrace.engine.measure import Phases
from steptrace.engine.step_counters import StepCounters, whole_periods
from steptrace.estimate.driver import DriverFacts
from steptrace.launch.probe import MeasuredEnd, Probe
from steptrace.launch.settings import FAULT, MAY_BE_OURS
from steptrace.predict import Prediction, backend, predict_syncs, threads
from steptrace.predict.fault import fault_report
from steptrace.predict.tensor import LIMIT
from steptrace.rank import from_rank_0

#: What an error begins with that says what cannot be followed.
_LIMIT: Final = LIMIT.partition("{")[0]
#: What a program gets that asks for Triton where only the CPU build of PyTorch is.
_NO_TRITON: Final = (
    "install Triton beside this PyTorch (`pip install triton`, on Linux): CUDA builds bring it, and a prediction of "
    "kernels needs it, but no GPU"
)
#: Errors that have nothing to do with a virtual device: a module, a file, a name that is not there.
_OF_THE_PROGRAM: Final = (ImportError, OSError, NameError, SyntaxError, KeyboardInterrupt)
#: Backward passes after which a program whose optimizer takes no step is ended.
_MOST_PASSES: Final = 500
_NO_STEPS: Final = (
    f"no optimizer has stepped in {_MOST_PASSES} backward passes. A loss scaler of the program's own may see overflows "
    "and skip all steps: large tensors have no values in a prediction, and what is computed from them is assumed. Try "
    "a smaller loss scale or bfloat16; a program that accumulates more batches than that can call steptrace.step()"
)
#: Matches errors about a missing GPU.
_NAMES_GPUS: Final = re.compile(r"device ordinal|\bgpus?\b|\bcuda:\d", re.IGNORECASE)


def predict(probe: Probe) -> Phases:
    """Count syncs over the steps after the warm-up."""
    settings = probe.settings
    backend.machine.gpus = settings.gpus
    manager = predict_syncs(driver=None if settings.driver is None else DriverFacts(**settings.driver))
    syncs = manager.__enter__()
    probe.hooks.in_closure = syncs.outside_optimizer
    probe.fault_of = partial(_fault_of, probe)
    probe.finder.on_pass = partial(_end_without_steps, probe)
    # After all that the program itself registers; threads that are left then find no device, and stop.
    atexit.register(manager.__exit__, None, None, None)
    atexit.register(threads.stop_others)
    by_step: list[int] = []
    warmup: list[int] = []
    counters = StepCounters(syncs.paused)
    complete = Prediction.of(syncs)
    left, steps = settings.warmup, settings.steps
    known = False
    try:
        while left or len(by_step) < steps:
            probe.progress("warm-up", settings.warmup - left, settings.warmup)
            if not left:
                probe.progress("followed", len(by_step), steps)
            before = syncs.total
            step = yield
            syncs.settle()
            counters.step_ends()
            if step.new_leader:  # from now on another optimizer ends the steps: start again
                left, steps, known = settings.warmup, settings.steps, False
                by_step.clear()
                warmup.clear()
                counters.stop()
                counters = StepCounters(syncs.paused)
            if left:
                left -= 1
                # The first step has the set-up before it: weights are copied to the device then.
                set_up = 0 if warmup else syncs.copied_before()
                warmup.append(syncs.total - before - set_up)
                syncs.reset()
                if len(warmup) == 1:
                    counters.watch()
            else:
                by_step.append(syncs.total - before)
                syncs.step_ends()
                complete = Prediction.of(syncs)
                if not known and (counters.watched_enough or len(by_step) == steps):
                    known = True
                    counters.stop()
                    periods = whole_periods(counters.branches(), least=settings.steps, most=settings.longest_period)
                    steps = from_rank_0(periods, "followed_steps")
        probe.progress("followed", len(by_step), steps)
    finally:  # an unfinished step at an early end does not count
        counters.stop()
        followed = replace(
            complete,
            by_step=tuple(by_step),
            warmup_by_step=tuple(warmup),
            branches=tuple(counters.branches()),
        )
        probe.record["prediction"] = followed.to_json()


def _end_without_steps(probe: Probe, passes: int) -> None:
    """End a program whose optimizer does not step: it could go on for ever, and nothing would be predicted."""
    if passes < _MOST_PASSES or not probe.finder.has_optimizer:
        return
    probe.finder.on_pass = None
    probe.mark(FAULT, _NO_STEPS)
    raise MeasuredEnd(1)


def _fault_of(probe: Probe, error: BaseException) -> str | None:
    """What to report of a limit of predictions or a bug in them; None where the program seems to have failed.

    Marks an error that more virtual GPUs may mend, and one that a prediction can have caused by what it computes.
    """
    if not isinstance(error, _OF_THE_PROGRAM):
        probe.mark(MAY_BE_OURS)
    if _NAMES_GPUS.search(str(error)):
        probe.mark("lacks_gpus")
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] == "triton":
        return _NO_TRITON
    return str(error) if str(error).startswith(_LIMIT) else fault_report(error) or hook_fault(error)
