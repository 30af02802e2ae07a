"""Classifies the names in a trace: of GPU activities, operators, labels, calls into the runtime and Python frames."""

import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

#: Kineto's categories of GPU activities, old spellings included.
GPU_CATEGORIES = {
    "kernel": "kernel",
    "Kernel": "kernel",
    "gpu_memcpy": "memcpy",
    "Memcpy": "memcpy",
    "gpu_memset": "memset",
    "Memset": "memset",
    "memcpy": "memcpy",
    "memset": "memset",
    # Of profilers that tell collectives from kernels by themselves: those of Ascend's NPUs and of oneCCL.
    "collective_comm": "collective",
}

#: Kernels of collectives: of the vendors' libraries, NVSHMEM and what is built on it, and symmetric-memory and custom
#: all-reduces, wherever a name holds these.
_COMM = re.compile(
    r"""
    ^(?:void\s+)?(?:(?:\w+|\(anonymous\ namespace\))::)*(?:
        [nrehxmtp]ccl | msccl | cncl | bkcl | hcom_ | nvshmem | ishmem | deep_?ep
    )
    | nccl(?:Dev)?Kernel | nvshmem | roc_?shmem | deep_ep:: | symm_?mem | multimem | userbuffers
    | (?:one|two)_?shot_?(?:all|reduce) | cross_device_reduce | quick_?reduce | lamport
    | all_?reduce | all_?gather | reduce_?scatter | all_?(?:to|2)_?all
    """,
    re.VERBOSE | re.IGNORECASE,
)
#: What kernels between or within machines do when they move data.
_MOVES = (
    r"dispatch|combine|barrier|send|recv|scatter|gather|broadcast|notify|signal|exchange|transfer|rdma|p2p|a2a"
    r"|all_?reduce|(?<![a-z])(?:put|get|push|pull|comm|copy)(?![a-z])"
)
#: The same in the name of the function itself, without its template's arguments and its parameters: libraries that move
#: tokens between GPUs, by namespace and by what they do. `dispatch` and `combine` alone name compute kernels, too.
_COMM_FUNCTION = re.compile(
    rf"""
    (?:^|[:_])ep::                                                     # a namespace of expert parallelism
    | (?:^|::)_*(?:moon|deep|hybrid|elastic)_?ep(?:::|_)
    | (?:^|::)(?:uccl|mori|pplx(?:_kernels)?|mscclpp|mooncake|(?:one)?ccl|xccl|hccl|flagcx|nixl)(?:::|_)
    | (?:^|::)(?:inter|intra)_?node(?:_\w+)?::
    # Between and within machines. Graphs and trees have nodes, too: their kernels do not say what is moved.
    | (?:inter|intra)_?node(?!s_|s\b)(?=.*(?:{_MOVES}))
    | (?:{_MOVES})\w*(?:inter|intra)_?node(?!s_|s\b)
    | (?-i:A2A) | (?<![a-z0-9])a2a(?![a-z0-9])
    | (?<![a-z])ep_?(?:dispatch|combine) | low_latency_(?:dispatch|combine)
    | (?:dispatch|combine)_?(?:send|recv) | (?<![a-z])send_?recv(?![a-z])
    | moe_?distribute_?(?:dispatch|combine)                            # Ascend's
    | (?:^|::)(?:hybrid_?ep|symmetric_memory|torchcomms|ctran|triton_dist(?:ributed)?)(?:::|_)
    | ^(?:\w+::)*(?:barrier|(?:put|wait)_signal)_kernel\Z               # of PyTorch's symmetric memory
    | (?:ipc|xgmi|nvlink)_?barrier | barrier_all | mori_?shmem
    | (?:barrier|sync|quiet|signal|alltoall|broadcast|fcollect|reduce)\w*_on_stream_kernel  # NVSHMEM's
    | (?:^|::)custom_ar(?:::|_) | low_?precision_?two_?shot | fused_?moe_?comm | (?<![a-z])gdr_?copy
    | halo_?exchange | push_pull_halos
    | (?:^|::)_*iris(?:::|_(?:put|get|load|store|atomic|all))
    | ^uc[pxt]_(?:put|get|am|tag|rma)(?=_|\Z)
    | (?<![a-z])gin_(?:put|get) | dispatch_?ffn_?combine
    """,
    re.VERBOSE | re.IGNORECASE,
)
_ANONYMOUS = "(anonymous namespace)::"
#: A reduction over the threads of one GPU, which has the name of a collective.
_WITHIN_GPU = re.compile(
    r"(?:block|warp|wave|lane|thread|grid|cluster|cta)_?(?:level_?)?all_?(?:reduce|gather)", re.IGNORECASE
)
#: A kernel that Inductor generated: it is named after the operators around it, and communicates with no other GPU.
_GENERATED = re.compile(r"^triton_[a-z]+_fused_")

#: The collectives, by patterns of their names in operators, kernels and PyTorch's descriptions; specific ones first.
_COLLECTIVES = {
    "all_reduce": r"all_?reduce|cross_device_reduce|(?:one|two)_?shot|(?:^|::|\s)custom_ar::",
    "all_gather": r"all_?gather",
    "reduce_scatter": r"reduce_?scatter",
    "all_to_all": r"all_?(?:to|2)_?all|(?-i:A2A)|(?<![a-z0-9])a2a(?![a-z0-9])|dispatch|combine",
    "broadcast": r"broadcast",
    "barrier": r"barrier",
    "send_recv": r"send_?i?recv",
    "send": r"send",
    "recv": r"recv",
    "gather": r"gather",
    "scatter": r"scatter",
    "reduce": r"reduce",
}
_BRACKETS = re.compile(r"[<>(]")
_COLLECTIVE = {name: re.compile(pattern, re.IGNORECASE) for name, pattern in _COLLECTIVES.items()}
_COLLECTIVE_OP = re.compile(r"^(?:c10d|_c10d_functional|c10d_functional|symm_mem)::|^nccl:")

#: Labels of collectives on the host, on threads of their own.
_HOST_COLLECTIVE = re.compile(r"^(?:gloo|mpi|ucc):")

#: The labels of the training loop: a step's parts, one after the other.
HOST_PARTS: Final = ("data", "forward", "loss", "backward", "optimizer")

#: Labels of PyTorch around a wait for the data loader.
LOADER_LABEL = re.compile(r"^enumerate\((?:DataLoader|DataPipe)\)#")

#: Names that are labels in any category: PyTorch 1.8 to 1.11 wrote them as operators.
_LABEL = re.compile(r"^(?:ProfilerStep\s*#|enumerate\((?:DataLoader|DataPipe)\)#|Optimizer\.\w+#)")
#: A step of an optimizer.
OPTIMIZER_STEP = re.compile(r"^Optimizer\.step#")

#: The autograd engine's operator around each node of a backward pass.
ENGINE = "autograd::engine::evaluate_function"
#: A node of a backward pass by itself, as PyTorch names them: `AddmmBackward0`, `torch::autograd::AccumulateGrad`.
_BACKWARD_NODE = re.compile(
    r"^(?:(?:\w+(?: \w+)?|\(anonymous namespace\))::)*"
    r"(?:\w*[a-z0-9]Backwards?\d*|AccumulateGrad|CopySlices|CppNode<.*>)\Z"
)

#: The nodes that add a gradient to a parameter's, one for each parameter of a pass.
UPDATES_GRADIENT: Final = frozenset(("torch::autograd::AccumulateGrad", f"{ENGINE}: torch::autograd::AccumulateGrad"))

_VERSION_SUFFIX = re.compile(r"(?:_v\d+|_pts[zd]|_spt)+\Z")

#: Calls that return only once queued GPU work of a stream (XPU: a queue), an event or the device is complete, in any
#: runtime that names them so: `cudaStreamSynchronize`, `aclrtSynchronizeStream`, `urQueueFinish`,
#: `zeEventHostSynchronize`, `cnrtQueueSync`.
_WAIT = re.compile(
    r"^(?:\w+@)?[a-z]+(?:"
    r"(?P<scope>Stream|Device|Event|Ctx|Context|Thread|Queue|CommandQueue|CommandList|Fence)(?:Host)?Sync(?:hronize)?"
    r"|Sync(?:hronize)?(?P<after>Stream|Device|Event|Queue)"
    r"|(?P<finish>Queue)Finish|(?P<events>Event)s?Wait"
    r")(?:WithTimeout)?\Z"
)
_SCOPES = {
    **dict.fromkeys(("Stream", "Queue", "CommandQueue", "CommandList"), "stream"),
    **dict.fromkeys(("Device", "Ctx", "Context", "Thread"), "device"),
    **dict.fromkeys(("Event", "Fence"), "event"),
}

_COPIES = r"^(?:\w+@)?(?:cuda|cu|hip|musa|mu|mc|aclrt)Memcpy"
_ASYNC_COPY = re.compile(rf"{_COPIES}\w*Async\Z|^(?:ur|pi)\w*Enqueue\w*(?:Memcpy|MemBuffer(?:Read|Write))\w*\Z")
_SYNC_COPY = re.compile(rf"{_COPIES}(?!\w*Async\Z)\w*\Z")

#: Operators that read a result of the GPU on the host: after their copy to the host they always wait for it.
_READS_RESULT: Final = frozenset(("aten::_local_scalar_dense", "aten::nonzero"))
#: Functions of Python that always wait: `torch.cuda.synchronize`, and that of streams. That of an event does not call
#: the runtime before the event is recorded, and its wrapper, `torch/cuda/streams.py(226): synchronize`, has the name of
#: a stream's.
_WAITING_FRAME = re.compile(
    r"^(?:(?:.*/)?torch/(?:cuda|xpu|accelerator|mtia|npu)/(?!streams\b)\w+\.py\(\d+\): synchronize"
    r"|<built-in (?:function|method) _(?:cuda|xpu|accelerator|npu)_synchronize.*>"
    r"|<built-in method synchronize of \w*Stream object at .*>)\Z"
)
#: CUPTI's records of calls that wait (category `cuda_sync`). Those of events are also written for queries.
_WAIT_RECORDS: Final = frozenset(("Stream Sync", "Context Sync"))

#: Calls that make one stream wait for an event of another, without holding up the host.
_STREAM_WAIT_EVENT = re.compile(r"^(?:\w+@)?[a-z]+StreamWaitEvent\Z")

#: The begin of a call's name.
_PREFIX = re.compile(r"[a-z]+(?=[A-Z])")

#: Categories of calls into a device's runtime or driver: by their ending, and PyTorch 1.8's.
_RUNTIME = re.compile(r"^(?:(\w+)_(?:runtime|driver)|[Rr]untime)\Z")
#: Runtimes whose waiting calls are known.
_KNOWN_RUNTIMES = frozenset({"cuda", "hip", "xpu"})
#: PyTorch's module for the devices of a runtime, if it has one.
_MODULES = {
    "cuda": "torch.cuda",
    "hip": "torch.cuda",
    "xpu": "torch.xpu",
    "mtia": "torch.mtia",
    "npu": "torch.npu",
    "ascend": "torch.npu",
}

#: Calls that always put a kernel, or a graph of work, on a GPU: of CUDA, HIP, XPU, MLU and others that name them so.
#: Empty copies leave no record, and a host function is no work of the GPU.
_LAUNCHES = re.compile(r"^(?:\w+@)?[a-z]\w*(?:Launch(?!HostFunc|Attribute)|InvokeKernel)\w*\Z")
_BEGINS_CAPTURE = re.compile(r"^[a-z]+StreamBeginCapture")
_ENDS_CAPTURE = re.compile(r"^[a-z]+StreamEndCapture")

#: The last number in a text.
_NUMBER_AT_END: Final = re.compile(r"\d{1,9}(?=\D*\Z)")
_STEP = re.compile(r"^ProfilerStep\s*#\s*(\d{1,15})\Z")
_COPY_DIRECTION = re.compile(
    r"^(?:Memcpy\s+|Copy|MEMORY_COPY_|zeCommandListAppendMemoryCopy\()?"
    r"(HtoD|DtoH|DtoD|HtoH|PtoP|(?:Host|Device)To(?:Host|Device)|(?:HOST|DEVICE)_TO_(?:HOST|DEVICE)"
    r"|M2D|D2M|D2D|M2M|H2D|D2H|H2H)\b"
)
_DIRECTIONS = {
    **dict.fromkeys(("HostToDevice", "HOST_TO_DEVICE", "M2D", "H2D"), "HtoD"),
    **dict.fromkeys(("DeviceToHost", "DEVICE_TO_HOST", "D2M", "D2H"), "DtoH"),
    **dict.fromkeys(("DeviceToDevice", "DEVICE_TO_DEVICE", "D2D"), "DtoD"),
    **dict.fromkeys(("HostToHost", "HOST_TO_HOST", "M2M", "H2H"), "HtoH"),
}


def is_collective_kernel(name: str) -> bool:
    """Whether a kernel moves data between GPUs: one of a collective, or of the exchange of tokens between experts."""
    plain = _without_parameters(name.replace(_ANONYMOUS, ""))
    function = plain.partition("<")[0].removeprefix("void ")
    if _GENERATED.match(name) or _WITHIN_GPU.search(function):
        return False
    return bool(_COMM.search(plain) or _COMM_FUNCTION.search(function))


def _without_parameters(name: str) -> str:
    """A kernel's name without its parameters: kernels beside a collective have parameters of its types, too."""
    depth = 0
    for part in _BRACKETS.finditer(name):
        bracket = part[0]
        if bracket == "(" and depth == 0:
            return name[: part.start()]
        depth += {"<": 1, ">": -1}.get(bracket, 0)
    return name


def collective_name(name: str) -> str | None:
    """The collective in a name: `all_reduce` for `allreduce_`, `_ALLREDUCE_`, `nccl:all_reduce`; or None."""
    # A kernel's parameters are types, whose names can mislead.
    head = name.replace("(anonymous namespace)", "").split("(")[0]
    return next((collective for collective, pattern in _COLLECTIVE.items() if pattern.search(head)), None)


def is_own_operator(name: str) -> bool:
    """Whether a name is an operator's own: it has a namespace, and is not a wrapper of the autograd engine."""
    return "::" in name and not name.startswith("autograd::")


def is_collective_op(name: str) -> bool:
    """Whether an operator is a call of PyTorch's collectives."""
    return bool(_COLLECTIVE_OP.match(name))


def is_label(name: str) -> bool:
    """Whether a name is one of PyTorch's own labels, whatever category it was written in."""
    return bool(_LABEL.match(name))


def is_backward(name: str) -> bool:
    """Whether an operator belongs to a backward pass, by its name."""
    return name.startswith(ENGINE) or bool(_BACKWARD_NODE.match(name))


def host_collective(label: str) -> str | None:
    """The host's collective under a label: `all_reduce` for `gloo:all_reduce`; None for other labels."""
    return collective_name(label) or label if _HOST_COLLECTIVE.match(label) else None


def call_name(name: str) -> str:
    """A runtime call's name without its version suffix: `cuMemcpyDtoH_v2` becomes `cuMemcpyDtoH`."""
    return _VERSION_SUFFIX.sub("", name)


def wait_scope(name: str) -> str | None:
    """The scope that a call waits for: a `stream`, an `event` or the `device`; None for calls that do not wait."""
    match = _WAIT.match(name)
    if match is None:
        return None
    return _SCOPES[next(group for group in match.groups() if group)]


#: Categories of torch_npu alone. It writes calls into its runtime and the work of its devices without a category.
_NPU: Final = frozenset(("enqueue", "dequeue", "async_npu", "async_task_queue"))


#: How torch_npu names the streams of its devices. Kineto begins them with a small letter.
_STREAM_OF_NPU: Final = re.compile(r"^Stream \d+\Z")


def is_of_npu(category: str) -> bool:
    """Whether only torch_npu writes events of a category."""
    return category in _NPU


def is_stream_of_npu(thread: str) -> bool:
    """Whether a thread's name is that of a stream in torch_npu's traces."""
    return bool(_STREAM_OF_NPU.match(thread))


def runtime_of(category: str) -> str | None:
    """The runtime whose calls an event category holds: `cuda`, `xpu`, `mtia`, ...; None for other categories."""
    match = _RUNTIME.match(category)
    return None if match is None else match[1] or "cuda"


def is_known_runtime(runtime: str) -> bool:
    """Whether the names of a runtime's waiting calls are known."""
    return runtime in _KNOWN_RUNTIMES


def device_module(runtimes: Iterable[str]) -> str:
    """PyTorch's module of the device with these runtimes; `torch.accelerator`, which is any device's, where unknown."""
    return next((_MODULES[runtime] for runtime in sorted(runtimes) if runtime in _MODULES), "torch.accelerator")


def reads_result(operator: str) -> bool:
    """Whether an operator that copies to the host always waits for the copy."""
    return operator in _READS_RESULT


def is_waiting_frame(name: str) -> bool:
    """Whether a Python function always waits for the GPU."""
    return bool(_WAITING_FRAME.match(name))


def is_wait_record(name: str) -> bool:
    """Whether CUPTI writes a record of this name for calls alone that wait for a stream or the device."""
    return name in _WAIT_RECORDS


def runtime_prefix(call: str) -> str:
    """What a runtime's calls begin with: `cuda` of `cudaStreamSynchronize`; empty for any other text."""
    match = _PREFIX.match(call)
    return match[0] if match else ""


def kind_of_sync(kind: str) -> str:
    """A kind of sync without the name of its runtime: `copy`, `stream`, `event` or `device`; others as they are."""
    if kind in ("d2h_copy", "h2d_copy") or is_sync_copy(kind):
        return "copy"
    return wait_scope(kind) or kind


def is_async_copy(name: str) -> bool:
    """Whether the call queues a copy and returns: `cudaMemcpyAsync` and its like."""
    return bool(_ASYNC_COPY.match(name))


def is_sync_copy(name: str) -> bool:
    """Whether the call copies and waits for the copy: `cudaMemcpy`, `hipMemcpyWithStream` and their like."""
    return bool(_SYNC_COPY.match(name))


def is_stream_copy(name: str) -> bool:
    """Whether the call copies, and waits for all work of its stream: `hipMemcpyWithStream`."""
    return name.endswith("MemcpyWithStream")


def is_stream_wait_event(name: str) -> bool:
    """Whether the call makes a stream wait for an event: `cudaStreamWaitEvent` and its like."""
    return bool(_STREAM_WAIT_EVENT.match(name))


def waits(name: str) -> bool:
    """Whether the call always waits for the GPU, by itself or after the copy that it makes."""
    return wait_scope(name) is not None or is_sync_copy(name)


def launch_kind(name: str) -> str | None:
    """`graph` or `kernel` for a call that always puts such work on a GPU, None for others."""
    if not _LAUNCHES.match(name):
        return None
    return "graph" if "GraphLaunch" in name else "kernel"


def uses_gpu(name: str) -> bool:
    """Whether the call launches work of a GPU, copies, or waits for the GPU."""
    return any(matches(name) for matches in (launch_kind, wait_scope, is_async_copy, is_sync_copy))


def begins_capture(name: str) -> bool:
    """Whether launches after the call are captured into a graph and do not run."""
    return bool(_BEGINS_CAPTURE.match(name))


def ends_capture(name: str) -> bool:
    """Whether the call ends such a capture."""
    return bool(_ENDS_CAPTURE.match(name))


def copy_direction(name: str) -> str | None:
    """`HtoD`, `DtoH`, `DtoD`, `PtoP` or `HtoH` of a GPU copy's name (`Memcpy DtoH (Device -> Pageable)`), or None."""
    match = _COPY_DIRECTION.match(name)
    if match is None:
        return None
    return _DIRECTIONS.get(match[1], match[1])


def is_pageable_copy(name: str) -> bool:
    """Whether a GPU copy goes to pageable memory of the host: its call returns only once the copy is done."""
    return name.endswith("-> Pageable)")


def number_in(identity: int | str | None) -> int:
    """The number of a GPU or of a stream in an event's process or thread: 1 of `GPU 1`; 0 without one."""
    if isinstance(identity, int):
        return identity
    match = _NUMBER_AT_END.search(identity or "")
    return int(match[0]) if match else 0


def step_index(name: str) -> int | None:
    """The N of `ProfilerStep#N`, None for any other label."""
    match = _STEP.match(name)
    return int(match[1]) if match else None


# Kineto names a frame `file(line): function`, where the line is that of the function's `def`, and files lie relative to
# the entries of `sys.path`. Built-ins, `nn.Module` and frozen modules appear as pseudo-frames.
_FRAME = re.compile(r"^(?P<file>[^<].*?)\((?P<line>\d{1,9})\): (?P<function>.+)\Z", re.DOTALL)
_TORCH = re.compile(r"^(?:.*/)?(?:torch|functorch|torchgen)/")
#: steptrace's own code, but not its workloads, which are the code under study.
_PIPELINE = re.compile(r"^(?:.*/(?:src|site-packages)/)?steptrace/(?!workloads/)")
#: The loop of a study's own trainings.
_LOOP: Final = re.compile(rf"{_PIPELINE.pattern}(?:lab|train)/loop")
#: The probe, whose frames are between the program and PyTorch.
_PROBE = re.compile(r"^(?:.*/(?:src|site-packages)/)?steptrace/launch/")
_STDLIB_FOLDER = re.compile(r"/lib/python3\.\d+/(?!site-packages/|dist-packages/)")
_STDLIB = sys.stdlib_module_names

#: The function of a frame that runs a file's own code. A trace has no line of it but the file's first.
MODULE: Final = "<module>"

#: A frame's role in the search for a site.
USER, PIPELINE, STDLIB, SKIP = range(4)


@dataclass(frozen=True)
class Frame:
    """One Python function of a trace.

    `line` is that of its `def`; of the line that executed an operator, that line; None if no line is known. `program`
    is the program's file and line that lead to a recorded line in a library.
    """

    file: str
    line: int | None
    function: str
    program: tuple[str, int] | None = None


def parse_frame(name: str) -> Frame | None:
    """The file, line and function of a frame's name, None for a pseudo-frame."""
    match = _FRAME.match(name)
    if match is None:
        return None
    return Frame(match["file"].replace("\\", "/"), int(match["line"]), match["function"])


def frame_role(name: str) -> int:
    """`USER`, `PIPELINE`, `STDLIB`, or `SKIP` for PyTorch's own and pseudo-frames."""
    frame = parse_frame(name)
    if frame is None or frame.file.startswith("nn.Module") or _TORCH.match(frame.file) or _PROBE.match(frame.file):
        return SKIP
    if _PIPELINE.match(frame.file):
        return PIPELINE
    first = frame.file.split("/")[0].removesuffix(".py")
    if _STDLIB_FOLDER.search(frame.file) or first in _STDLIB:
        return STDLIB
    return USER


def is_own_loop(name: str) -> bool:
    """Whether a frame belongs to the loop that trains a study's variants."""
    return _LOOP.match(name) is not None
