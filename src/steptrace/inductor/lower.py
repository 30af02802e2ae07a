"""The kernels that Inductor's scheduler would launch for a graph of ATen operators on a GPU, found without one."""

import contextlib
import copy
import importlib
import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final
from unittest import mock

import torch

from steptrace.torch_names import private

# None if PyTorch lacks one of them: then `predict.captured` lowers no code, and this module can still be imported.
FakeTensor: Any = private("torch._subclasses.fake_tensor.FakeTensor")
FakeTensorMode: Any = private("torch._subclasses.fake_tensor.FakeTensorMode")
pytree: Any = private("torch.utils._pytree")

#: The device that a graph is lowered for.
CUDA: Final = torch.device("cuda", 0)
#: PyTorch's own dispatch of fake tensors, which `predict.compiler_contexts` replaces. Lowering needs the original,
#: which leaves CUDA devices as they are.
_DISPATCH: Final[Any] = getattr(FakeTensorMode, "dispatch", None)
#: flex_attention, forward and backward.
FLEX_ATTENTION: Final = (torch.ops.higher_order.flex_attention, torch.ops.higher_order.flex_attention_backward)
#: Inductor's calls of graphs inside of a graph, with the attributes that hold these, and its loops over such graphs.
_SUBGRAPHS: Final = {"Conditional": ("true_subgraph", "false_subgraph"), "InvokeSubgraph": ("subgraph",)}
_LOOPS: Final = ("WhileLoop",)
#: Where a node keeps its result, and what a region inside of the graph gets.
_VALUES: Final = ("val", "eager_input_vals")
#: Notes the strides of results, of a graph and the graphs inside of it.
_STRIDES: Final = "torch._inductor.compile_fx._recursive_record_original_output_strides"
#: Settings of Inductor: no autotuning, since there is no GPU to try kernels on.
_SETTINGS: Final = {"max_autotune": False, "max_autotune_gemm": False}


@dataclass(frozen=True, kw_only=True)
class GpuFacts:
    """What Inductor asks about a GPU, with the names of `torch.cuda.get_device_properties`."""

    name: str
    major: int
    minor: int
    multi_processor_count: int
    total_memory: int
    L2_cache_size: int
    shared_memory_per_block_optin: int
    regs_per_multiprocessor: int = 65536
    max_threads_per_multi_processor: int = 2048
    warp_size: int = 32
    max_threads_per_block: int = 1024
    gcnArchName: str = ""  # noqa: N815 - PyTorch's own

    @property
    def shared_memory_per_multiprocessor(self) -> int:
        """Bytes: what a block can ask for, and 1 KiB that the driver reserves for each block."""
        return self.shared_memory_per_block_optin + 1024


@dataclass(frozen=True, kw_only=True)
class Fused:
    """A kernel that Inductor generates.

    Attributes:
        is_reduction: whether it reduces along a dimension; otherwise it is elementwise.
        read: bytes read.
        written: bytes written.
        operators: names of the ATen operators in it.
        shape: sizes of its loops, outermost first.
    """

    is_reduction: bool
    read: int
    written: int
    operators: tuple[str, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Library:
    """A call of a library's kernel, such as a matrix product or a convolution.

    Attributes:
        operator: the ATen operator.
        args: its positional arguments; tensors are fake tensors.
        kwargs: its keyword arguments.
        result: its result, as fake tensors.
        layouts: strides of its input tensors as Inductor lays them out; empty if not known.
        layout: strides of a single result; None if not known.
    """

    operator: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any
    layouts: tuple[tuple[int, ...], ...] = ()
    layout: tuple[int, ...] | None = None


Launch = Fused | Library


@contextmanager
def _pretending(facts: GpuFacts) -> Iterator[None]:
    """Make Inductor believe that this GPU and Triton are present."""
    interface: Any = importlib.import_module("torch._dynamo.device_interface").CudaInterface
    scheduler: Any = importlib.import_module("torch._inductor.scheduler")
    hints: Any = importlib.import_module("torch._inductor.runtime.hints").DeviceProperties

    def properties(_device: object = None) -> GpuFacts:
        return facts

    with ExitStack() as stack:
        for owner, name, value in (
            (interface, "is_available", staticmethod(lambda: True)),
            (interface.Worker, "get_device_properties", staticmethod(properties)),
            (interface, "get_device_properties", staticmethod(properties)),
            (interface, "current_device", staticmethod(lambda: 0)),
            (interface, "get_compute_capability", staticmethod(lambda _=None: 10 * facts.major + facts.minor)),
            (torch.cuda, "is_available", lambda: True),
            (torch.cuda, "get_device_properties", properties),
            (torch.cuda, "get_device_capability", lambda _=None: (facts.major, facts.minor)),
            (torch.cuda, "current_device", lambda: 0),
            (scheduler, "has_triton", lambda *_: True),
        ):
            stack.enter_context(mock.patch.object(owner, name, value))
        # The method of tensors asks for the device first, unlike the operator.
        stack.enter_context(mock.patch.object(FakeTensor, "nonzero", _nonzero, create=True))
        if hasattr(hints.create, "cache_clear"):
            hints.create.cache_clear()
            stack.callback(hints.create.cache_clear)
        yield


def _nonzero(tensor: Any) -> Any:
    return torch.ops.aten.nonzero.default(tensor)


def _flex(query: Any, key: Any, value: Any, *_: Any) -> tuple[Any, Any, Any]:
    """Lower `flex_attention` as flash attention, whose results have the same shapes; its own template needs Triton."""
    lowering: Any = importlib.import_module("torch._inductor.lowering")
    flash = torch.ops.aten._scaled_dot_product_flash_attention.default
    out, sums, *_rest = lowering.fallback_handler(flash, add_to_fallback_set=False)(query, key, value)
    return out, sums, sums


def _flex_backward(query: Any, key: Any, value: Any, out: Any, sums: Any, grad_out: Any, *rest: Any) -> Any:
    lowering: Any = importlib.import_module("torch._inductor.lowering")
    graph: Any = importlib.import_module("torch._inductor.virtualized").V.graph
    flash = torch.ops.aten._scaled_dot_product_flash_attention_backward.default
    length = query.get_size()[2]
    of_keys = key.get_size()[2]
    # Flash attention takes the state of a random generator; any tensor will do for it.
    grads = lowering.fallback_handler(flash, add_to_fallback_set=False)(
        grad_out, query, key, value, out, sums, sums, sums, length, of_keys, 0.0, False, sums, sums
    )
    # The gradients of tensors that the score_mod reads are set to zero, and the kernel adds to them.
    captured = graph.current_node.meta["val"][3]
    of_captured = [
        None if gradient is None else lowering.full_like(tensor, 0)
        for tensor, gradient in zip(rest[-2], captured or (), strict=False)
    ]
    return (*grads[:3], of_captured)


def _as_cuda(graph: Any, inputs: Sequence[Any], shape_env: Any) -> tuple[Any, list[Any], Any]:
    """A copy of a graph with its tensors on CUDA, its inputs, and the mode of its fake tensors."""
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=shape_env)

    def moved(value: Any) -> Any:
        if not isinstance(value, FakeTensor):
            return value
        device = value.fake_device if value.fake_device.type == "cpu" else CUDA
        empty = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
        return FakeTensor(mode, empty, device)

    def on_cuda(value: Any) -> Any:
        return CUDA if isinstance(value, torch.device) and value.type not in ("cpu", "meta") else value

    def copied(graph: Any) -> Any:
        module = torch.fx.GraphModule(graph, copy.deepcopy(graph.graph))
        for name, inside in list(module.named_children()):  # a region that is compiled once, or a branch
            if isinstance(inside, torch.fx.GraphModule):
                setattr(module, name, copied(inside))
        for node in module.graph.nodes:
            node.args = pytree.tree_map(on_cuda, node.args)
            node.kwargs = pytree.tree_map(on_cuda, node.kwargs)
            for name in _VALUES:
                if name in node.meta:
                    node.meta[name] = pytree.tree_map(moved, node.meta[name])
        module.recompile()
        return module

    return copied(graph), [moved(value) for value in inputs], mode


def launches_of(
    graph: Any, inputs: Sequence[Any], facts: GpuFacts, *, is_inference: bool, is_backward: bool
) -> list[Launch]:
    """The kernels that a graph launches, in order.

    Args:
        graph: the graph of ATen operators, as Inductor's `inner_compile` gets it.
        inputs: its inputs, as fake tensors.
        facts: the GPU to lower for.
        is_inference: whether no backward pass follows.
        is_backward: whether the graph is a backward pass.

    Raises:
        Exception: whatever Inductor raises for a graph that it cannot lower.
    """
    inductor: Any = importlib.import_module("torch._inductor.graph")
    compile_fx: Any = importlib.import_module("torch._inductor.compile_fx")
    virtualized: Any = importlib.import_module("torch._inductor.virtualized").V
    debug: Any = importlib.import_module("torch._inductor.debug").DebugContext
    config: Any = importlib.import_module("torch._inductor.config")
    traced_mode = next((value.fake_mode for value in inputs if isinstance(value, FakeTensor)), None)
    shape_env = None if traced_mode is None else traced_mode.shape_env
    with _pretending(facts):
        # Inductor's passes run operators on fake tensors, some of them in place. These need a device that exists, so
        # the passes run before the graph is moved to CUDA.
        graph = torch.fx.GraphModule(graph, copy.deepcopy(graph.graph))
        compile_fx.view_to_reshape(graph)
        private(_STRIDES)(graph)
        with torch.no_grad(), virtualized.set_fake_mode(traced_mode), debug(), config.patch(_SETTINGS):
            compile_fx._recursive_post_grad_passes(graph, is_inference=is_inference)
        module, moved, mode = _as_cuda(graph, inputs, shape_env)
        # Autograd would look for a CUDA device. It is not needed, since these graphs already contain the backward pass.
        with (
            torch.no_grad(),
            torch._C._AutoDispatchBelowAutograd(),
            mock.patch.object(FakeTensorMode, "dispatch", _DISPATCH),
            virtualized.set_fake_mode(mode),
            debug(),
            config.patch(_SETTINGS),
        ):
            lowering = inductor.GraphLowering(
                module, example_inputs=moved, shape_env=shape_env, is_inference=is_inference, is_backward=is_backward
            )
            lowerings: Any = importlib.import_module("torch._inductor.lowering").lowerings
            flex = dict(zip(FLEX_ATTENTION, (_flex, _flex_backward), strict=True))
            with (
                mock.patch.dict(lowerings, flex),
                virtualized.set_graph_handler(lowering),
                virtualized.set_extern_kernel_nodes([]),
            ):
                lowering.run(*moved)
                lowering._update_scheduler()
                return [launch for node in lowering.scheduler.nodes for launch in _launches(node)]


def operators_of(graph: Any) -> list[Launch]:
    """The operators of a graph, in order, as they run where nothing fuses them. Views are among them.

    Args:
        graph: the graph of ATen operators, whose nodes hold fake tensors.
    """
    return [
        Library(
            operator=node.target,
            args=torch.fx.map_arg(node.args, _value_of),
            kwargs=dict(torch.fx.map_arg(node.kwargs, _value_of)),
            result=node.meta.get("val"),
        )
        for node in graph.graph.nodes
        if node.op == "call_function" and isinstance(node.target, torch._ops.OperatorBase)
    ]


def _value_of(argument: Any) -> Any:
    return argument.meta.get("val") if isinstance(argument, torch.fx.Node) else argument


def _launches(node: Any) -> Iterator[Launch]:
    kind = type(node).__name__
    if kind == "NopKernelSchedulerNode" or _runs_on_host(node):
        return
    if kind == "ExternKernelSchedulerNode":
        yield from _library(node)
        return
    if kind == "ForeachKernelSchedulerNode":  # one kernel for a list of tensors
        parts = list(node.snodes)
        yield Fused(
            is_reduction=any(part.is_reduction() for part in parts),
            read=sum(_moved(part)[0] for part in parts),
            written=sum(_moved(part)[1] for part in parts),
            operators=_operators(node),
            shape=(len(parts),),
        )
        return
    read, written = _moved(node)
    yield Fused(
        is_reduction=node.is_reduction(), read=read, written=written, operators=_operators(node), shape=_sizes(node)
    )


def _runs_on_host(node: Any) -> bool:
    """Whether a node is code for the CPU, such as an optimizer's count of steps."""
    try:
        device = node.get_device()
    except Exception:  # a node of a kind without a device
        return False
    return device is not None and device.type == "cpu"


def _moved(node: Any) -> tuple[int, int]:
    """Bytes that a node reads and writes."""
    total = int(node.get_read_write_buffers_sizes())
    written = 0
    with contextlib.suppress(Exception):
        written = sum(_bytes(output.node) for output in node.get_outputs() if output.node is not None)
    written = min(written, total)
    return total - written, written


def _bytes(buffer: Any) -> int:
    return math.prod(map(_number, buffer.get_size())) * int(buffer.get_dtype().itemsize)


def _number(size: Any) -> int:
    """A size as a number; a dynamic size has the value that it had when the graph was traced."""
    sizes = importlib.import_module("torch._inductor.virtualized").V.graph.sizevars
    hint = getattr(sizes, "optimization_hint", None) or sizes.size_hint
    return int(hint(size, fallback=1))


def _sizes(node: Any) -> tuple[int, ...]:
    try:
        return tuple(_number(size) for size in node.group[1])
    except Exception:
        return ()


def _operators(node: Any) -> tuple[str, ...]:
    names: dict[str, None] = {}
    for part in node.get_nodes():
        for origin in getattr(part.node, "origins", ()) or ():
            if origin.op == "call_function":
                names[str(origin.target)] = None
    return tuple(sorted(names))


def _library(node: Any) -> Iterator[Launch]:
    buffer = node.node
    kind = type(buffer).__name__
    if kind in ("MultiOutput", "NopKernel"):
        return
    if kind in _SUBGRAPHS:
        # Of a condition's two branches the one with more launches counts.
        yield from max((_launches_of_subgraph(getattr(buffer, name)) for name in _SUBGRAPHS[kind]), key=len)
        return
    if kind in _LOOPS:
        raise NotImplementedError(f"{kind}: how often the loop runs is not known")
    operator = getattr(buffer, "op_overload", None)
    origins = [node for node in (getattr(buffer, "origins", None) or ()) if node.op == "call_function"]
    called = [node for node in origins if node.target in FLEX_ATTENTION or _is_form_of(operator, node.target)]
    origin = called[0] if called else getattr(buffer, "origin_node", None) or (origins[-1] if origins else None)
    if origin is None:
        return

    yield Library(
        operator=origin.target,
        args=torch.fx.map_arg(origin.args, _value_of),
        kwargs=dict(torch.fx.map_arg(origin.kwargs, _value_of)),
        result=origin.meta.get("val"),
        layouts=_layouts(getattr(buffer, "inputs", ())),
        layout=next(iter(_layouts((buffer,))), None),
    )


def _launches_of_subgraph(subgraph: Any) -> list[Launch]:
    """The kernels of a graph inside of another one."""
    virtualized: Any = importlib.import_module("torch._inductor.virtualized").V
    with virtualized.set_graph_handler(subgraph.graph):
        subgraph.graph._update_scheduler()
        return [launch for node in subgraph.graph.scheduler.nodes for launch in _launches(node)]


def _is_form_of(operator: Any, target: Any) -> bool:
    """Whether a library's operator is an operator of the graph, or another form of it, such as the one with `out`."""
    packet = getattr(operator, "overloadpacket", None)
    return packet is not None and getattr(target, "overloadpacket", None) is packet


def _layouts(buffers: Sequence[Any]) -> tuple[tuple[int, ...], ...]:
    """Strides of buffers; empty if one of them has no known strides."""
    try:
        return tuple(tuple(_number(stride) for stride in buffer.get_stride()) for buffer in buffers)
    except Exception:  # a buffer without a layout, such as several results at once
        return ()
