"""Takes the graphs of compiled code from Dynamo, in place of a backend, and finds the kernels of each pass."""

import importlib
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal

import torch
from torch import Tensor

from steptrace.documents.estimate import OperatorCalls
from steptrace.inductor.lower import GpuFacts, Library, launches_of, operators_of
from steptrace.predict import attention, backend
from steptrace.predict.composite_kernels import launches_in
from steptrace.predict.dynamo_notes import OURS, Notes
from steptrace.predict.guards import Compiled, fits, frame_of
from steptrace.predict.kernel_calls import ASSUMED_VALUE, number_of, recorded_form, with_numbers
from steptrace.predict.pytorch import current_node, storage_key
from steptrace.torch_names import private

pytree: Any = private("torch.utils._pytree")
HigherOrderOperator: Any = private("torch._ops.HigherOrderOperator")
#: What makes code of Dynamo's graphs: Inductor, PyTorch's CUDA graphs of their operators, or what runs the operators.
Backend = Literal["inductor", "cudagraphs", "other"]
#: Settings of Inductor that a capture does without: there is no GPU to try kernels on, or to record them.
_WITHOUT: Final = {"triton.cudagraphs": False, "max_autotune": False, "max_autotune_gemm": False}
_ATTENTION: Final = torch.nn.functional.scaled_dot_product_attention
#: Makes a backend of functions that get graphs of ATen operators, forward and backward.
_OF_GRAPHS: Final = "torch._dynamo.backends.common.aot_autograd"
#: The difference between the placeholders of numbers that are read in two passes.
_STEP: Final = 2.0**-20


@dataclass(frozen=True)
class CaptureOptions:
    """How compiled code is followed.

    Attributes:
        facts: the properties of the GPU.
        dynamic: the argument `dynamic` of `torch.compile`.
        originals: PyTorch's attributes as they are without a prediction, by owner and name.
        known: earlier compilations, of this function and of those that are compiled with it.
        code_by: what makes code of the graphs.
        lowers: whether kernels are asked for, or graphs alone.
        settings: Inductor's, by name, as the program sets them for this code.
    """

    facts: GpuFacts
    dynamic: bool | None
    originals: Mapping[tuple[Any, str], Any]
    known: Mapping[tuple[str, int, str], Sequence[Compiled]]
    code_by: Backend
    lowers: bool
    settings: Mapping[str, Any]


@dataclass
class _Pass:
    """One pass of a graph.

    Attributes:
        calls: its kernels.
        kept_bytes: what it keeps for its backward pass, with its results.
    """

    calls: list[OperatorCalls]
    kept_bytes: int


class GraphCompiler:
    """Gets the graphs from Dynamo in place of a backend. It notes their kernels in `notes` and makes no code.

    Args:
        notes: gets the results.
        options: how the code is followed.
        target: the code of the followed function.
    """

    def __init__(self, notes: Notes, options: CaptureOptions, target: object) -> None:
        self._notes = notes
        self._options = options
        self._target = target
        self._names: Mapping[str, Any] = {}
        #: The placeholder of numbers that are read at graph breaks. Each pass has another one, as each call reads other
        #: numbers.
        self.number_read = ASSUMED_VALUE + (notes.trace.number + 1) * _STEP
        #: The places of the call's arguments, by the identity of their fake tensors, and of the function and its owner.
        self.positions: dict[int, Any] = {}
        #: The fake tensors, by the identity of the program's.
        self.fakes: Mapping[int, Tensor] = {}
        #: How many graphs there are at the latest function's end.
        self._before = 0
        #: The forward passes of the graphs since then.
        self._passes: list[_Pass] = []
        #: Dynamo's context while it follows a function. It is another one where Dynamo begins anew.
        self._context: object = None
        self._is_paused = False

    def compile(self, graph: Any, inputs: Sequence[Any]) -> Any:
        """Note the kernels of a graph; called by Dynamo, which gets something that runs as the graph would."""
        notes = self._notes
        graphs = self._before
        context = private("torch._guards.TracingContext").try_get()
        is_part = notes.graphs > graphs and context is self._context
        self._context = context
        if notes.graphs > graphs and not is_part:
            # Dynamo has begun anew with a function, for example because a number turned out to be constant.
            notes.graphs = graphs
        if not is_part:  # DistributedDataParallel has a graph compiled in parts, one for each bucket of gradients
            notes.graphs += 1
        for node in graph.graph.nodes:
            if node.op == "call_function" and node.target is _ATTENTION:
                node.target = attention.of_fakes
        graph.recompile()
        if self._options.code_by == "other" or not (self._options.lowers or _has_numbers(graph)):
            return graph.forward
        if self._options.code_by == "cudagraphs":
            by_pass = {"fw_compiler": self._lower, "bw_compiler": partial(self._lower, is_backward=True)}
            return private(_OF_GRAPHS)(**by_pass)(graph, inputs)
        compile_fx: Any = importlib.import_module("torch._inductor.compile_fx")
        patches = {**self._options.settings, **_WITHOUT}
        return compile_fx.compile_fx(graph, list(inputs), inner_compile=self._lower, config_patches=patches)

    def _lower(self, graph: Any, inputs: Sequence[Any], **of_graph: Any) -> Callable[..., Any]:
        """Find the kernels of one pass of a graph; return a function that runs in place of the pass, and notes them."""
        notes = self._notes
        is_backward = bool(of_graph.get("is_backward"))
        kept_bytes = 0 if is_backward else _kept_bytes(graph)
        notes.is_lowering = True
        is_inference = bool(of_graph.get("is_inference"))
        with private("torch.utils._python_dispatch._disable_current_modes")():
            if not self._options.lowers:
                launches = []
            elif self._options.code_by == "inductor":
                launches = launches_of(
                    graph, inputs, self._options.facts, is_inference=is_inference, is_backward=is_backward
                )
            else:
                launches = operators_of(graph)
            parts = [part for launch in launches for part in launches_in(with_numbers(launch))]
        notes.is_lowering = False
        recorded = (recorded_form(part, notes.mask_share) for part in parts)
        lowered = _Pass([call for call in recorded if call is not None], kept_bytes)
        if not is_backward:  # a backward pass may be lowered after its function's end
            self._passes.append(lowered)

        def run(inputs: list[Any]) -> Any:
            # A graph may run more often than it is compiled, as that of a function that is called in a loop.
            (notes.backward if is_backward else notes.forward).append(lowered.calls)
            notes.kept_bytes += lowered.kept_bytes
            values = list(inputs)
            inputs.clear()
            if (known := _results_of(graph)) is not None:
                return known
            with self.paused():
                return graph(*values)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    @contextmanager
    def paused(self) -> Iterator[None]:
        """A context in which operators are none of the program's between two graphs."""
        was_paused = self._is_paused
        self._is_paused = True
        try:
            yield
        finally:
            self._is_paused = was_paused

    def ran_between(self, operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        """Note an operator of the program that runs between two graphs, uncompiled, and makes tensors on the device."""
        notes = self._notes
        if self._is_paused or not self._options.lowers or operator.namespace != "aten":
            return
        if private("torch._guards.TracingContext").try_get() is not None:  # Dynamo follows the code, and runs nothing
            return
        results = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]
        tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if not results or any(tensor.device.type != backend.DEVICE_TYPE for tensor in (*results, *tensors)):
            return  # a copy from or to the host, or an operator of the host
        launch = Library(operator=operator, args=tuple(args), kwargs=dict(kwargs), result=result)
        with private("torch.utils._python_dispatch._disable_current_modes")():
            recorded = (recorded_form(part, notes.mask_share) for part in launches_in(with_numbers(launch)))
            calls = [call for call in recorded if call is not None and not call.is_view]
        if calls:
            (notes.forward if current_node() is None else notes.backward).append(calls)

    def ends_function(self, code: types.CodeType, output: Any) -> None:
        """Note a function that is compiled, unless an earlier call has compiled it for the same arguments."""
        notes = self._notes
        graphs = notes.graphs - self._before
        passes, self._passes = self._passes, []
        if code.co_filename.startswith(OURS):  # it does not belong to the program
            notes.graphs = self._before
            for lowered in passes:
                lowered.calls = []
                lowered.kept_bytes = 0
            return
        self._before = notes.graphs
        stands_for = {id(fake): identity for identity, fake in self.fakes.items()}
        if code is self._target:
            self._names = dict(output.local_scope)
        frame = frame_of(
            code,
            output,
            graphs=graphs,
            arguments=self.positions,
            names=self._names,
            is_read=lambda value: isinstance(value, float) and value == self.number_read,
            stands_for=stands_for,
        )
        is_known, failed = fits(self._options.known.get(frame.key, ()), output, stands_for)
        if is_known:
            notes.graphs_known += graphs
        else:
            notes.trace.compiled[len(notes.trace.frames)] = failed
        notes.trace.frames.append(frame)


def _has_numbers(graph: Any) -> bool:
    """Whether a graph of Dynamo's has dynamic numbers of type float.

    Dynamo compiles its function again with a constant in place of each that an operator does not take as a tensor. Only
    the pass that makes graphs of ATen operators finds these.
    """
    return any(isinstance(node.meta.get("example_value"), torch.SymFloat) for node in graph.graph.nodes)


def _results_of(graph: Any) -> list[Any] | None:
    """The results of a graph that no fake tensor can run through, as they were traced; None of any other graph.

    Such a graph has an operator that takes functions, such as `flex_attention`.
    """
    nodes = list(graph.graph.nodes)
    if not any(isinstance(node.target, HigherOrderOperator) for node in nodes):
        return None
    return [output.meta.get("val") if isinstance(output, torch.fx.Node) else output for output in nodes[-1].args[0]]


def _kept_bytes(graph: Any) -> int:
    """Bytes that stay after a forward pass: its results and the tensors for its backward pass, without its inputs."""
    nodes = list(graph.graph.nodes)
    (last,) = (node for node in nodes if node.op == "output")
    placeholders = {_storage(node) for node in nodes if node.op == "placeholder"}
    kept = {_storage(node): node for node in pytree.tree_leaves(last.args) if isinstance(node, torch.fx.Node)}
    tensors = [node.meta["val"] for key, node in kept.items() if key is not None and key not in placeholders]
    return sum(number_of(tensor.untyped_storage().nbytes()) for tensor in tensors if tensor.layout is torch.strided)


def _storage(node: Any) -> int | None:
    value = node.meta.get("val")
    return storage_key(value.untyped_storage()) if isinstance(value, Tensor) else None
