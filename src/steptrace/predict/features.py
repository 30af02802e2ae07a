"""All changes of the process while a prediction is active (`FEATURES`), and how each of them is set up.

Most features replace attributes of PyTorch by functions that other modules have. The ones here change settings, or let
the program tell the recorder of itself: its labels, its batches, and the lines that its warnings belong to.
"""

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, Final, TypeVar

import torch

from steptrace.foreign_messages import TORCH_MISSES_CUDA
from steptrace.predict import (
    attention,
    autocast,
    backend,
    collectives,
    compiled,
    compiled_syncs,
    cuda_api,
    cuda_classes,
    custom,
    encoder_layers,
    memory_functions,
    modules,
    nvml,
    nvrtc_kernels,
    recurrent,
    sent,
    swaps,
    threads,
    triton_kernels,
)
from steptrace.predict.backend import Replacements, virtual_device
from steptrace.predict.memory import PINNED, UNFINISHED
from steptrace.predict.patches import Feature
from steptrace.predict.places import running_line, stack_of
from steptrace.predict.pytorch import replacing
from steptrace.predict.syncs import Syncs
from steptrace.torch_names import private

_OURS = f"{Path(__file__).parent}/"
#: The label of a step in a program that profiles itself: it differs in each step, so it says nothing about a place.
_PROFILER_STEP = "ProfilerStep#"
#: The result of a feature's `set_up`.
_SetUp = TypeVar("_SetUp", bound=Replacements | AbstractContextManager[Replacements])


@contextmanager
def _stacks_with_nodes(recorder: Syncs) -> Iterator[Replacements]:
    """Anomaly mode stays on, to keep the forward stack with every node; the program decides on its check for NaN."""
    put = torch.set_anomaly_enabled
    before = torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()
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
            **replacing(
                "torch.fx.traceback.format_stack",
                lambda _: lambda: stack_of(sys._getframe(1)).marked(recorder.thread.region),
            ),
        }
    finally:
        put(*before)


@contextmanager
def _default_device() -> Iterator[Replacements]:
    """Let set_default_device("cuda") mean the virtual device, and forget it afterwards."""
    put = torch.set_default_device
    get = torch.get_default_device

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
def _not_compiled(recorder: Syncs) -> Iterator[Replacements]:
    """Keep PyTorch from compiling; the program has a stance of its own (`torch.compiler.set_stance`)."""
    with torch.compiler.set_stance("force_eager"):
        yield replacing("torch._dynamo.decorators._set_stance", lambda _: recorder.compilation.set_stance)


@contextmanager
def _parameters_kept(_recorder: Syncs) -> Iterator[Replacements]:
    """Let Module.to() swap the tensor inside a parameter, so that earlier optimizers still hold the parameter."""
    future = torch.__future__
    before = future.get_swap_module_params_on_conversion()
    future.set_swap_module_params_on_conversion(True)
    try:
        yield {(torch.utils, "swap_tensors"): swaps.swapping(torch.utils.swap_tensors)}
    finally:
        future.set_swap_module_params_on_conversion(before)


@contextmanager
def _copies_shown(_recorder: Syncs) -> Iterator[Replacements]:
    """torch.tensor(..., device=) shows its copy to the device as an operator."""
    asked = private("torch._C._only_lift_cpu_tensors")
    put = private("torch._C._set_only_lift_cpu_tensors")
    if asked is None or put is None:
        yield {}
        return
    before = asked()
    put(True)
    try:
        yield {}
    finally:
        put(before)


def _grouped(_recorder: Syncs) -> Replacements:
    """Optimizers, clipping and averages group tensors by device, and have forms for lists of tensors on CUDA."""

    def named(group: Callable[..., Any]) -> Callable[..., Any]:
        def grouped(tensors: Any, with_indices: bool = False) -> dict[tuple[Any, Any], Any]:  # noqa: FBT001, FBT002
            groups = group(tensors, with_indices).items()
            return {(device and _as_program_sees(device), dtype): of_both for (device, dtype), of_both in groups}

        return grouped

    return replacing("torch._C._group_tensors_by_device_and_dtype", named)


def _as_program_sees(device: torch.device) -> torch.device:
    return backend.cuda_device(device.index) if device.type == backend.DEVICE_TYPE else device


@contextmanager
def _marks_forgotten(_recorder: Syncs) -> Iterator[Replacements]:
    """Marks on memory, and tensors of collectives, end with the prediction."""
    try:
        yield {}
    finally:
        compiled_syncs.release()
        collectives.release()
        UNFINISHED.clear()
        PINNED.clear()


def _labels(recorder: Syncs) -> Replacements:
    """Let record_function tell the recorder which block is running."""
    owner = torch.autograd.profiler.record_function
    enter = owner.__enter__
    leave = owner.__exit__

    def entering(self: Any) -> Any:
        if not self.name.startswith(_PROFILER_STEP):
            recorder.thread.enter(self.name)
        return enter(self)  # type: ignore[no-untyped-call]

    def leaving(self: Any, *error: Any) -> Any:
        if not self.name.startswith(_PROFILER_STEP):
            recorder.thread.leave()
        return leave(self, *error)

    return {(owner, "__enter__"): entering, (owner, "__exit__"): leaving}


def _functions(recorder: Syncs) -> Replacements:
    """Let custom autograd functions report their start. Their operators have no autograd node, but are forward work."""
    owner = torch.autograd.Function
    call = vars(owner)["apply"]  # a method in Python or in C

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled() and any(
            isinstance(argument, torch.Tensor) and argument.requires_grad for argument in args
        ):
            recorder.thread.forward_begins()
        return call.__get__(None, cls)(*args, **kwargs)

    return {(owner, "apply"): classmethod(apply)}


def _batches(recorder: Syncs) -> Replacements:
    """Let loaders tell the recorder of each batch."""
    owner = private("torch.utils.data.dataloader._BaseDataLoaderIter")
    if owner is None:
        return {}
    load = owner.__next__

    @wraps(load)
    def __next__(self: Any) -> Any:  # noqa: N807
        batch = load(self)
        recorder.thread.batch_arrives()
        return batch

    return {(owner, "__next__"): __next__}


def _warnings_at_lines() -> Replacements:
    """Warnings of PyTorch's C++ name the program's line, not ours; those that CUDA would not give are silent."""
    show: Callable[..., None] = warnings._showwarnmsg  # type: ignore[attr-defined]

    def show_at_program_s_line(message: Any) -> None:
        if TORCH_MISSES_CUDA.find(message.message) is not None:
            return
        site = running_line() if message.filename.startswith(_OURS) else None
        if site is not None:
            message.filename = site.file
            message.lineno = site.line
        show(message)

    return {(warnings, "_showwarnmsg"): show_at_program_s_line}


def _engine() -> Replacements:
    return replacing(backend.ENGINE, backend.Engine)


def _recurrent_weights() -> Replacements:
    """Recurrent layers move their weights into one buffer of cuDNN's, which PyTorch makes in C++."""
    return {(torch.nn.RNNBase, "flatten_parameters"): recurrent.flatten_parameters}


def _threads(recorder: Syncs) -> Replacements:
    """Each thread of the program enters the modes while it runs, so that it finds the device."""
    assert recorder.modes is not None
    return threads.replacements(recorder.modes)


def _without_recorder(set_up: Callable[[], _SetUp]) -> Callable[[Syncs], _SetUp]:
    return lambda _recorder: set_up()


#: All changes of the process while a prediction is active, in the order in which they are set up. Settings of
#: PyTorch come first, since what follows may call PyTorch; they are undone last.
FEATURES: Final = (
    Feature("eager", "the program runs as it is written", "compiled code is not followed", _not_compiled),
    Feature(
        "parameters",
        "an optimizer that was made before a model moved holds the model's parameters",
        "optimizers that were made before a model moved do not train it",
        _parameters_kept,
    ),
    Feature("torch.tensor", "its copy to the device counts", "copies by torch.tensor are not counted", _copies_shown),
    Feature("foreach", "clipping launches as on CUDA", "clipping launches per tensor", _grouped),
    Feature(
        "marks", "a prediction begins without marks on memory", "pinned memory is not told apart", _marks_forgotten
    ),
    Feature(
        "other processes",
        "tensors on the GPU are sent to other processes",
        "a program that sends tensors on the GPU to another process fails",
        sent.followed,
    ),
    Feature(
        "torch.cuda",
        "a program finds a GPU in torch.cuda, torch.accelerator and torch.backends",
        "a program may find no GPU",
        _without_recorder(cuda_api.replacements),
        stays=True,
    ),
    Feature(
        "engine",
        "errors of a backward pass reach the program",
        "errors of a backward pass may be lost",
        _without_recorder(_engine),
        stays=True,
    ),
    Feature(
        "recurrent layers",
        "their weights are copied into a buffer of cuDNN's",
        "recurrent layers may fail",
        _without_recorder(_recurrent_weights),
    ),
    Feature(
        "backward lines",
        "the lines of the forward pass are kept for the backward pass",
        "lines of the backward pass are those that called it",
        _stacks_with_nodes,
    ),
    Feature(
        "default device",
        "torch.set_default_device takes the virtual device",
        "a default device of CUDA fails",
        _without_recorder(_default_device),
    ),
    Feature(
        "NVML",
        "a program that asks the driver by pynvml learns of the virtual GPUs",
        "a program that asks the driver by pynvml finds none",
        _without_recorder(nvml.replacements),
    ),
    Feature(
        "default type",
        "torch.set_default_tensor_type takes CUDA's types",
        "a default type of CUDA fails",
        _without_recorder(cuda_classes.default_type),
    ),
    Feature(
        "attention",
        "a program that asks learns which form of attention takes its tensors",
        "the answer to a program that asks for a form of attention is that of a machine without a GPU",
        _without_recorder(attention.replacements),
    ),
    Feature(
        "encoder layers",
        "attention and encoder layers take their fast path in inference",
        "attention and encoder layers in inference launch more than on CUDA",
        _without_recorder(encoder_layers.replacements),
    ),
    Feature(
        "collectives",
        "ranks talk by gloo, and see the backend that they asked for",
        "programs with several ranks cannot ask for NCCL",
        _without_recorder(collectives.replacements),
    ),
    Feature(
        "storages",
        "storages move, pin and are saved as on CUDA",
        "what torch.save, torch.load and pin_memory copy is not counted",
        _without_recorder(memory_functions.replacements),
    ),
    Feature(
        "modules",
        "lazy modules and flex_attention work on the device",
        "lazy modules and flex_attention may fail",
        _without_recorder(modules.replacements),
    ),
    Feature(
        "torch.compile",
        "compiled code runs as it is written, and is marked",
        "syncs of compiled code are counted as if it were not compiled",
        compiled.replacements,
    ),
    Feature(
        "autocast",
        "autocast of CUDA means the virtual device",
        "autocast leaves all types as they are",
        _without_recorder(autocast.replacements),
        stays=True,
    ),
    Feature("labels", "the blocks of record_function are told apart", "there are no labels", _labels),
    Feature("batches", "a batch begins a step", "the copy of a batch may be taken for the forward pass", _batches),
    Feature(
        "functions",
        "the program's autograd functions begin the forward pass",
        "some work of the forward pass may be taken for data",
        _functions,
    ),
    Feature(
        "warnings",
        "warnings of PyTorch's C++ name the program's line",
        "warnings name lines of steptrace, and a missing GPU",
        _without_recorder(_warnings_at_lines),
    ),
    Feature(
        "custom operators",
        "custom operators that are written in Python run their own code",
        "custom operators of a torch.library.Library are unknown",
        _without_recorder(custom.replacements),
    ),
    Feature(
        "Triton",
        "launches of Triton's kernels are noted",
        "programs with Triton kernels fail",
        _without_recorder(triton_kernels.replacements),
    ),
    Feature(
        "kernels compiled from CUDA C++",
        "launches of kernels that a program compiles itself are noted",
        "programs that compile their own kernels fail",
        _without_recorder(nvrtc_kernels.replacements),
    ),
    Feature(
        "threads",
        "threads of the program find the device",
        "threads of the program find no device",
        _threads,
    ),
)
