"""The entry point: `with predict_syncs() as syncs: step()`.

It makes "cuda" name the virtual device while a prediction is active, and puts everything back afterwards.
"""

import importlib
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch

from steptrace.errors import PredictError
from steptrace.estimate.driver import DriverFacts
from steptrace.predict import autocast, backend, execution, substitutes, threads
from steptrace.predict.arguments import Reroute
from steptrace.predict.compiler_contexts import forget_replacements
from steptrace.predict.features import FEATURES
from steptrace.predict.patches import applied
from steptrace.predict.sync_rule import SyncRule
from steptrace.predict.sync_rules import SyncRules
from steptrace.predict.syncs import Syncs
from steptrace.torch_names import losses_of, missing

_one_at_a_time = threading.Lock()


@contextmanager
def predict_syncs(
    rules: Sequence[SyncRule] = (),
    *,
    driver: DriverFacts | None = None,
    follow_compiled: bool = False,
    compile_modules: bool = False,
) -> Iterator[Syncs]:
    """Count the syncs that the program inside would make on a CUDA device, on any machine.

    Inside, "cuda" names a virtual device that computes on the CPU. Tensors, modules, `torch.cuda`, autocast and
    gradient scaling work on it without a change, and values are those of a CPU run. Tensors that were moved there stay
    there, also afterwards; `.cpu()` brings them back. A first step does work that later steps do not (it creates
    states), so predict the second.

    In a process with a GPU of its own train before a prediction or in another process, not after it: PyTorch's C++ then
    takes the virtual device for the accelerator, and backward passes and pinned memory on the real GPU fail.

    Args:
        rules: rows for custom operators, or to replace rows of the table (see `steptrace.predict.sync_rule`).
        driver: the properties of the GPU (`steptrace.estimate.driver`); default: those of an H100.
        follow_compiled: whether to find the kernels and graph breaks of the code that the program compiles, which takes
            seconds.
        compile_modules: whether to find, too, which kernels the program's modules would have if they were compiled;
            implies `follow_compiled`.

    Returns:
        A context manager that gives `Syncs`.

    Raises:
        PredictError: another prediction is active in this process, or PyTorch cannot be extended.

    Example:
        with steptrace.predict_syncs() as syncs:
            train_step(model.to("cuda"), batch)
            syncs.reset()
            train_step(model, batch)
        print(syncs)
        syncs.to_frame()
        print(syncs.estimate("H100"))
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
        autocast.ensure_registered()
        recorder.rules = SyncRules(rules)
        recorder.modes = _modes
        for row in missing("predict", "ranks"):
            recorder.lacks(*losses_of([row]))
        # Creating an optimizer imports it, and it wants to see torch.cuda as it is.
        importlib.import_module("torch._dynamo")
        recorder.compilation.is_followed = follow_compiled or compile_modules
        recorder.compilation.compiles_modules = compile_modules
        with _virtual_machine(driver), applied(FEATURES, recorder):
            Syncs.active = recorder
            with threads.following(_modes):
                yield recorder
    finally:
        Syncs.active = None
        if "torch._dynamo" in sys.modules:
            forget_replacements()
        _one_at_a_time.release()


@contextmanager
def _modes() -> Iterator[None]:
    """The modes that a thread enters to use the virtual device."""
    # The engine starts its threads at the process's first backward pass, for the devices that exist then. The virtual
    # device may come later and would have no thread, so the engine runs in the calling thread.
    in_this_thread = torch.autograd.set_multithreading_enabled(False)
    with in_this_thread, Reroute(), execution.VirtualDevice():
        yield


@contextmanager
def _virtual_machine(driver: DriverFacts | None) -> Iterator[None]:
    """A context in which the virtual GPUs exist; `driver` holds their properties."""
    with ExitStack() as stack:
        stack.callback(backend.machine.end)
        backend.machine.begin(driver)
        stack.enter_context(backend.module_there())
        yield
