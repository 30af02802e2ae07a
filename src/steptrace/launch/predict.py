"""Inside the program: predicts the syncs of some of its steps on a CUDA device, without one.

The virtual device exists from the import of PyTorch, so that the program chooses it as it would choose a GPU, to the
end of the process, since exit handlers may use it. Syncs are counted over several steps, because programs log only now
and then. How often they log is seen from the conditions that they evaluate in each step
(`steptrace.engine.step_counters`).
"""

import atexit
from dataclasses import replace
from functools import partial
from typing import Final

import torch

from steptrace.engine.frames import hook_fault
from steptrace.engine.session import Phases
from steptrace.engine.step_counters import StepCounters, whole_periods
from steptrace.estimate.driver import DriverFacts
from steptrace.foreign_messages import GPU_IS_MISSING
from steptrace.launch.events import FailedOnVirtualGpu, Fault, GpuMissing
from steptrace.launch.probe import MeasuredEnd, Probe
from steptrace.predict import Prediction, backend, predict_syncs, threads
from steptrace.predict.compiled_calls import ENDING
from steptrace.predict.fault import fault_report, may_be_ours
from steptrace.predict.limit import CannotFollowError, WaitInCaptureError
from steptrace.predict.syncs import Syncs
from steptrace.rank import from_rank_0
from steptrace.torch_names import private

#: The advice to a program that needs Triton beside a CPU build of PyTorch.
_NO_TRITON: Final = (
    "install Triton beside this PyTorch (`pip install triton`, on Linux): CUDA builds bring it, and a prediction of "
    "kernels needs it, but no GPU"
)
#: Errors that a virtual device cannot cause: a missing module, file or name.
_OF_THE_PROGRAM: Final = (ImportError, OSError, NameError, SyntaxError, KeyboardInterrupt)
#: A program is ended after so many backward passes without an optimizer step.
_MOST_PASSES: Final = 500
_NO_STEPS: Final = (
    f"no optimizer has stepped in {_MOST_PASSES} backward passes. A loss scaler of the program's own may see overflows "
    "and skip all steps: large tensors have no values in a prediction, and what is computed from them is assumed. Try "
    "a smaller loss scale or bfloat16; a program that accumulates more batches than that can call steptrace.step()"
)


def predict(probe: Probe) -> Phases:
    """Count the syncs of the steps after the warm-up."""
    settings = probe.settings
    syncs = _start(probe)
    by_step: list[int] = []
    warmup: list[int] = []
    counters = StepCounters(syncs.thread.paused)
    complete = Prediction.so_far(syncs)
    warmup_left = settings.warmup
    steps = settings.steps
    is_period_known = False
    may_grow = settings.longest_period > 1  # branches on a step counter may ask for more steps
    try:
        while warmup_left or len(by_step) < steps:
            probe.progress("warm-up", settings.warmup - warmup_left, settings.warmup)
            if not warmup_left:
                probe.progress("followed", len(by_step), None if may_grow and not is_period_known else steps)
            before = syncs.total
            step = yield
            syncs.settle()
            counters.step_ends()
            if step.new_leader:  # from now on another optimizer ends the steps: start again
                warmup_left = settings.warmup
                steps = settings.steps
                is_period_known = False
                by_step.clear()
                warmup.clear()
                counters.stop()
                counters = StepCounters(syncs.thread.paused)
            if warmup_left:
                warmup_left -= 1
                # The count of the first step would include the set-up before it, which copies weights to the device.
                set_up = 0 if warmup else syncs.copied_before()
                warmup.append(syncs.total - before - set_up)
                syncs.reset()
                if len(warmup) == 1:
                    counters.watch()
            else:
                by_step.append(syncs.total - before)
                syncs.step_ends()
                complete = Prediction.so_far(syncs)
                if not is_period_known and (counters.watched_enough or len(by_step) == steps):
                    is_period_known = True
                    counters.counters_known()
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
            awaited=tuple(counters.awaited()),
        )
        probe.record["prediction"] = followed.to_json()


def _start(probe: Probe) -> Syncs:
    """Begin the prediction, which ends with the process after all exit handlers of the program."""
    settings = probe.settings
    backend.machine.gpus = settings.gpus
    driver = None if settings.driver is None else DriverFacts(**settings.driver)
    # Compiled code matters only to times and graph breaks, and following it takes a while.
    manager = predict_syncs(
        driver=driver,
        follow_compiled=settings.follows_compiled or driver is not None,
        compile_modules=settings.compiles,
    )
    syncs = manager.__enter__()
    probe.hooks.in_closure = syncs.thread.outside_optimizer
    probe.hooks.follow_graphs(torch.cuda.CUDAGraph)  # the prediction's own
    probe.fault_of = partial(_fault_of, probe)
    probe.finder.on_pass = partial(_end_without_steps, probe)
    # These two run after all exit handlers of the program. Threads that still run find no device then, and stop.
    atexit.register(manager.__exit__, None, None, None)
    atexit.register(threads.stop_others)
    return syncs


def _end_without_steps(probe: Probe, passes: int) -> None:
    """End a program whose optimizer takes no step: it could go on for ever, and nothing would be predicted."""
    if passes < _MOST_PASSES or not probe.finder.has_optimizer:
        return
    probe.finder.on_pass = None
    probe.tell(Fault(_NO_STEPS))
    raise MeasuredEnd(1)


def _fault_of(probe: Probe, error: BaseException) -> str | None:
    """The report on an error by a limit or a bug of predictions; None if the program itself seems to have failed.

    Tells the launcher, too, if more virtual GPUs may avoid the error, or if the prediction may have caused it.
    """
    forbidden = map(private, ENDING)
    known = (*_OF_THE_PROGRAM, *(kind for kind in forbidden if kind is not None))
    if not isinstance(error, known) and may_be_ours(error):
        probe.tell(FailedOnVirtualGpu())
    if GPU_IS_MISSING.find(error) is not None:
        probe.tell(GpuMissing())
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] == "triton":
        return _NO_TRITON
    if isinstance(error, CannotFollowError | WaitInCaptureError):
        return str(error)
    return fault_report(error) or hook_fault(error)
