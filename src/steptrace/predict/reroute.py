"""The entry point: `with predict_syncs() as syncs: step()`.

It makes "cuda" name the virtual device while a prediction is active, and puts everything back afterwards. The program
tells of itself meanwhile: its labels, its batches, and the lines that its warnings belong to.
"""

import importlib
import re
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import torch
from torch.utils import _foreach_utils
from torch.utils.data import dataloader

from steptrace.errors import PredictError
from steptrace.estimate.driver import DriverFacts
from steptrace.predict import (
    attention,
    autocast,
    backend,
    collectives,
    compiled,
    cuda_api,
    cuda_classes,
    custom,
    execution,
    modules,
    substitutes,
    tensor,
    threads,
    triton_kernels,
)
from steptrace.predict.arguments import Reroute
from steptrace.predict.backend import Replacements, virtual_device
from steptrace.predict.memory import PINNED, UNFINISHED
from steptrace.predict.places import running_line, stack_of
from steptrace.predict.recorder import Syncs
from steptrace.predict.rule import Rule
from steptrace.predict.tensor import VirtualTensor

_one_at_a_time = threading.Lock()
_MISSING = object()
_OURS = f"{Path(__file__).parent}/"
#: Warnings about a missing GPU, and about attention that is not compiled: neither holds for the program itself.
_NOT_SO_ON_CUDA = re.compile(
    r"^CUDA initialization: |GetDeviceCount\(?\)? failed|Can't initialize NVML|^flex_attention called without"
)
#: The label of a step in a program that profiles itself: one of its own for each step, which says nothing of a place.
_PROFILER_STEP = "ProfilerStep#"


@contextmanager
def predict_syncs(rules: Sequence[Rule] = (), *, driver: DriverFacts | None = None) -> Iterator[Syncs]:
    """Count the syncs that the program inside would make on a CUDA device, on any machine.

    Inside, "cuda" names a virtual device that computes on the CPU: tensors, modules, `torch.cuda`, autocast and
    gradient scaling go there unchanged, and values are those of a CPU run. What was moved there stays there; `.cpu()`
    brings it back, also afterwards. A first step does work that later ones do not (states are created), so predict
    the second.

    Args:
        rules: rows for custom operators, or to replace rows of the table (see `steptrace.predict.rule`).
        driver: what the GPU says of itself (`steptrace.estimate.driver`); default: what an H100 says.

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
        autocast.ensure_registered()
        execution.use_rules(rules)
        execution.use_modes(_modes)
        with _rerouted(recorder, driver):
            Syncs.active = recorder
            with threads.following(_modes):
                yield recorder
    finally:
        Syncs.active = None
        _one_at_a_time.release()


@contextmanager
def _modes() -> Iterator[None]:
    """What a thread enters to find the virtual device."""
    # The engine starts its threads once, at the process's first backward pass, for the devices there are then: a
    # later device has none. In the calling thread it needs none.
    in_this_thread = torch.autograd.set_multithreading_enabled(False)
    with in_this_thread, Reroute(), execution.VirtualDevice():  # type: ignore[no-untyped-call]
        yield


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Set an attribute of a module or class for a while, creating it if it is inherited or missing."""
    before = vars(owner).get(name, _MISSING)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if before is _MISSING:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


@contextmanager
def _stacks_with_nodes(recorder: Syncs) -> Iterator[Replacements]:
    """Anomaly mode stays on, to keep the forward stack with every node; the program decides on its check for NaN."""
    stacks = importlib.import_module("torch.fx.traceback")
    put, before = torch.set_anomaly_enabled, (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled())
    asked = list(before)

    def set_anomaly_enabled(mode: bool, check_nan: bool = True) -> None:  # noqa: FBT001, FBT002 - torch's own
        asked[:] = mode, check_nan
        put(True, mode and check_nan)

    set_anomaly_enabled(*before)
    try:
        yield {
            (torch, "set_anomaly_enabled"): set_anomaly_enabled,
            (torch, "is_anomaly_enabled"): lambda: asked[0],
            (torch, "is_anomaly_check_nan_enabled"): lambda: asked[1],
            (stacks, "format_stack"): lambda: stack_of(sys._getframe(1)).marked(recorder.region),
        }
    finally:
        put(*before)


@contextmanager
def _default_device() -> Iterator[Replacements]:
    """Let set_default_device("cuda") mean the virtual device, and forget it afterwards."""
    put, get = torch.set_default_device, torch.get_default_device

    def named() -> torch.device:
        return backend.cuda_device(get().index) if get().type == backend.DEVICE_TYPE else get()

    try:
        yield {
            (torch, "set_default_device"): lambda device: put(virtual_device(device)),
            (torch, "get_default_device"): named,
        }
    finally:
        if get().type == backend.DEVICE_TYPE:
            put(None)


@contextmanager
def _rerouted(recorder: Syncs, driver: DriverFacts | None) -> Iterator[None]:
    """Everything that must be different in the process while a prediction is active."""
    future = torch.__future__
    # Creating an optimizer imports it, and it wants to see torch.cuda as it is.
    importlib.import_module("torch._dynamo")
    with ExitStack() as stack:
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.callback(backend.machine.end)
        backend.machine.begin(driver)
        stack.enter_context(backend.module_there())
        # Module.to() swaps what is inside a parameter, so that optimizers made before it still hold the parameter.
        stack.callback(future.set_swap_module_params_on_conversion, future.get_swap_module_params_on_conversion())
        future.set_swap_module_params_on_conversion(True)
        # torch.tensor(..., device=) then shows its copy to the device as an operator.
        stack.callback(torch._C._set_only_lift_cpu_tensors, torch._C._only_lift_cpu_tensors())
        torch._C._set_only_lift_cpu_tensors(True)
        # Optimizers choose their foreach forms by type.
        # torch.optim deletes its attribute of this name, so it can be had by import only.
        for module in (_foreach_utils, importlib.import_module("torch.optim.optimizer")):
            module._foreach_supported_types.append(VirtualTensor)
            stack.callback(module._foreach_supported_types.remove, VirtualTensor)
        stack.callback(PINNED.clear)
        stack.callback(UNFINISHED.clear)
        stack.callback(collectives.release)
        stack.callback(compiled.release)
        replacements: Replacements = {
            **cuda_api.replacements(),
            (torch.autograd.Variable, "_execution_engine"): backend.Engine(torch.autograd.Variable._execution_engine),
            # Recurrent layers would move their weights into one buffer of cuDNN's, which it makes in C++.
            (torch.nn.RNNBase, "flatten_parameters"): lambda _: None,
            **stack.enter_context(_stacks_with_nodes(recorder)),
            **stack.enter_context(_default_device()),
            **stack.enter_context(cuda_classes.default_type()),
            **attention.replacements(),
            **collectives.replacements(),
            **tensor.replacements(),
            **modules.replacements(),
            **compiled.replacements(recorder),
            **autocast.replacements(),
            **_labels(recorder),
            **_batches(recorder),
            **_functions(recorder),
            **_warnings_at_lines(),
            **custom.replacements(),
            **triton_kernels.replacements(),
            **threads.replacements(_modes),
        }
        for (owner, name), value in replacements.items():
            stack.enter_context(_replaced(owner, name, value))
        yield


def _labels(recorder: Syncs) -> Replacements:
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


def _functions(recorder: Syncs) -> Replacements:
    """Let the program's own autograd functions tell that they begin: what they call is not recorded, but is forward."""
    owner = torch.autograd.Function
    call = vars(owner)["apply"]  # of Python's or of C's own

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled() and any(isinstance(one, torch.Tensor) and one.requires_grad for one in args):
            recorder.forward_begins()
        return call.__get__(None, cls)(*args, **kwargs)

    return {(owner, "apply"): classmethod(apply)}


def _batches(recorder: Syncs) -> Replacements:
    """Let loaders tell the recorder of each batch."""
    owner = dataloader._BaseDataLoaderIter
    load = owner.__next__

    @wraps(load)
    def __next__(self: Any) -> Any:  # noqa: N807
        batch = load(self)
        recorder.batch_arrives()
        return batch

    return {(owner, "__next__"): __next__}


def _warnings_at_lines() -> Replacements:
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
