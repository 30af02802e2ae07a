"""The library's way in: `with predict_syncs() as syncs: step()`."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from steptrace.errors import PredictError
from steptrace.predict import backend, execution, substitutes
from steptrace.predict.recorder import Syncs, recording
from steptrace.predict.reroute import rerouted
from steptrace.predict.rule import Rule

_one_at_a_time = threading.Lock()


@contextmanager
def predict_syncs(rules: Sequence[Rule] = ()) -> Iterator[Syncs]:
    """Count the syncs that the program inside would make on a CUDA device, on any machine.

    Inside, "cuda" names a virtual device that computes on the CPU: tensors, modules, `torch.cuda`, autocast and
    gradient scaling go there unchanged, and values are those of a CPU run. What was moved there stays there; `.cpu()`
    brings it back, also afterwards. A first step does work that later ones do not (states are created), so predict
    the second.

    Args:
        rules: rows for custom operators, or to replace rows of the table (see `steptrace.predict.rule`).

    Raises:
        PredictError: another prediction is active in this process, or PyTorch cannot be extended.
    """
    if not _one_at_a_time.acquire(blocking=False):
        raise PredictError(
            "a prediction is already active in this process",
            expected="one predict_syncs() at a time",
            next_step="leave the outer block first, or read its counts",
        )
    recorder = Syncs()
    try:
        backend.ensure_registered()
        substitutes.ensure_registered()
        execution.use_rules(rules)
        # The engine starts its threads once, at the process's first backward pass, for the devices there are then: a
        # later device has none. In the calling thread it needs none.
        in_this_thread = torch.autograd.set_multithreading_enabled(False)
        with in_this_thread, rerouted(recorder), execution.VirtualDevice(), recording(recorder):  # type: ignore[no-untyped-call]
            yield recorder
    except BaseException as error:
        recorder.forget_since(error)
        raise
    finally:
        _one_at_a_time.release()
