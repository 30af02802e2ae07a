"""Finds the kernels of a compiled module or function, by Dynamo and Inductor on fake tensors of the virtual device.

Fake tensors stand for the program's while Dynamo follows its code, so nothing is computed, and the program does not
change. The forward and backward pass of each graph are lowered for the GPU (`steptrace.inductor.lower`), and their
kernels are recorded in the form of operators. A value that the code reads from a tensor counts as 1.
"""

import collections
import importlib
import inspect
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal
from unittest import mock

import torch
from torch import Tensor, nn

from steptrace.documents.compiled import CompiledCode, GraphBreak, GraphKernels, Unlowered
from steptrace.documents.estimate import OperatorCalls
from steptrace.engine.compilations import broken_by_pytorch, hints_of
from steptrace.engine.frames import trace_file_name
from steptrace.inductor.lower import GpuFacts, launches_of, operators_of
from steptrace.predict import attention, backend
from steptrace.predict.child import in_child
from steptrace.predict.compiler_contexts import (
    as_without_prediction,
    compiling,
    devices_named,
    functions_known,
    make_patterns,
    patterns_of_cpu,
    silent,
    without_function_modes,
    without_saved_tensor_hooks,
)
from steptrace.predict.failed_guards import Failed
from steptrace.predict.fake_state import OF_NO_PROGRAM, FakeState, fake_of
from steptrace.predict.guards import OWNER, TARGET, Compiled, Frame, code_of, fits, frame_of
from steptrace.predict.kernel_calls import ASSUMED_VALUE, flex_calls, number_of, recorded_form, with_numbers
from steptrace.predict.places import place_of_stack
from steptrace.predict.pytorch import storage_key
from steptrace.predict.sharded import sharded_units
from steptrace.torch_names import losses_of, missing, owner_of, private, release_of

FakeTensor: Any = private("torch._subclasses.fake_tensor.FakeTensor")
FakeTensorMode: Any = private("torch._subclasses.fake_tensor.FakeTensorMode")
pytree: Any = private("torch.utils._pytree")
HigherOrderOperator: Any = private("torch._ops.HigherOrderOperator")
_Mode: Any = private("torch.utils._python_dispatch.TorchDispatchMode") or object
#: What makes code of Dynamo's graphs: Inductor, PyTorch's CUDA graphs of their operators, or what runs the operators.
Backend = Literal["inductor", "cudagraphs", "other"]
#: Settings of Inductor that a capture does without: there is no GPU to try kernels on, or to record them.
_WITHOUT: Final = {"triton.cudagraphs": False, "max_autotune": False, "max_autotune_gemm": False}
_ATTENTION: Final = torch.nn.functional.scaled_dot_product_attention
#: The size up to which values of constants are computed while a graph is traced.
_CONSTANTS: Final = "torch.fx.experimental.proxy_tensor.CONSTANT_NUMEL_LIMIT"
#: Makes a backend of functions that get graphs of ATen operators, forward and backward.
_OF_GRAPHS: Final = "torch._dynamo.backends.common.aot_autograd"
#: Makes the check of all that a compiled function depends on.
_GUARDS: Final = "torch._dynamo.guards.CheckFunctionManager.__init__"
#: Holds Dynamo's names of the numbers that it has found to be constants.
_SPECIALIZED: Final = "torch._dynamo.symbolic_convert.TensorifyState"
#: The difference between what stands for numbers that are read in two passes.
_STEP: Final = 2.0**-20
#: The method of modules that `Module.compile` compiles.
_CALL: Final = "_call_impl"
#: The first release whose Dynamo and Inductor are followed.
_OLDEST: Final = (2, 13)
#: How often a condition on a tensor holds. Then it does not, so that a loop that waits for it ends.
_MOST_TRUE: Final = 16
#: Folders of this package that are not the program's: what Dynamo says of them is not about it.
_OURS: Final = tuple(
    f"{Path(__file__).parents[1] / name}/" for name in ("predict", "engine", "launch", "inductor", "callbacks")
)


@dataclass
class Trace:
    """What Dynamo says of a call that it has followed, beside its kernels.

    Attributes:
        frames: the functions that it compiles, in order, each with what it depends on.
        compiled: by place among them, those that no earlier call has compiled for the same sizes and values, with the
            guard that has failed; None of those that are compiled for the first time.
        code_state: which sizes and numbers have varied so far, in PyTorch's own form; None for none.
        specialized: Dynamo's names of numbers that cannot be dynamic, as some operator takes them as constants.
        error: PyTorch's message on the first graph break.
        number: how many calls of this code were followed before.
    """

    frames: list[Frame] = field(default_factory=list)
    compiled: dict[int, Failed | None] = field(default_factory=dict)
    code_state: Any = None
    specialized: frozenset[str] = frozenset()
    error: str | None = None
    number: int = 0


@dataclass
class _Found:
    """The results of Dynamo and Inductor so far; backward passes are in the order of their forward passes."""

    forward: list[list[OperatorCalls]] = field(default_factory=list)
    backward: list[list[OperatorCalls]] = field(default_factory=list)
    breaks: list[GraphBreak] = field(default_factory=list)
    graphs: int = 0
    #: Of them, those that an earlier call has made.
    graphs_known: int = 0
    kept_bytes: int = 0
    is_lowering: bool = False
    #: The share of the blocks that the mask of a `flex_attention` leaves.
    mask_share: float = 1.0
    trace: Trace = field(default_factory=Trace)


class _Reads(_Mode):  # type: ignore[misc]
    """Answers what fake tensors cannot: a value that is read between two graphs."""

    def __init__(self, number: float) -> None:
        super().__init__()
        self.conditions = 0
        #: What stands for each number of type float.
        self.number = number

    @classmethod
    def is_infra_mode(cls) -> bool:
        return True  # it does not keep code from being compiled

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if str(func) == "aten._local_scalar_dense.default":
            if args[0].dtype == torch.bool:
                self.conditions += 1
                return self.conditions <= _MOST_TRUE
            return self.number if args[0].dtype.is_floating_point else ASSUMED_VALUE
        result = func(*args, **(kwargs or {}))
        return pytree.tree_map(lambda value: _with_known_sizes(value, args), result)


def _with_known_sizes(value: Any, args: Any) -> Any:
    """A tensor between two graphs whose sizes depend on values, such as of `nonzero`: there they are numbers."""
    if not isinstance(value, FakeTensor) or not any(isinstance(size, torch.SymInt) for size in value.shape):
        return value
    most = min((int(arg.numel()) for arg in pytree.tree_leaves(args) if isinstance(arg, Tensor)), default=1)
    sizes = [size if isinstance(size, int) else most for size in value.shape]
    return FakeTensor(value.fake_mode, torch.empty(sizes, dtype=value.dtype, device="meta"), value.fake_device)


def capture(  # noqa: PLR0913
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    facts: GpuFacts,
    dynamic: bool | None = None,
    originals: Mapping[tuple[Any, str], Any],
    trace: Trace | None = None,
    known: Mapping[tuple[str, int, str], Sequence[Compiled]] | None = None,
    lowers: bool = True,
    code_by: Backend = "inductor",
    settings: Mapping[str, Any] | None = None,
) -> CompiledCode:
    """The kernels of a compiled function, for a call with these arguments.

    Args:
        function: the module, method or function that the program compiles.
        args: the arguments of the call by position.
        kwargs: the arguments of the call by name.
        facts: the properties of the GPU.
        dynamic: the argument `dynamic` of `torch.compile`.
        originals: PyTorch's attributes as they are without a prediction, by owner and name.
        trace: its `code_state` is where Dynamo begins; it is filled with what Dynamo says.
        known: earlier compilations, of this function and of those that are compiled with it.
        lowers: whether kernels are asked for, or graphs alone.
        code_by: what makes code of the graphs.
        settings: Inductor's, by name, as the program sets them for this code.

    Returns:
        The kernels. If they cannot be found, the reason and no kernels.
    """
    began = time.perf_counter()
    if release_of(torch.__version__) < _OLDEST:
        return unlowered("release", str(torch.__version__))
    if missing("compile"):
        return unlowered("names", "; ".join(losses_of(missing("compile"))))
    make_patterns(originals)
    trace = Trace() if trace is None else trace
    found = _Found(mask_share=mask_share_of((*args, *kwargs.values())), trace=trace)
    asked: dict[str, Any] = {
        "facts": facts,
        "dynamic": dynamic,
        "originals": originals,
        "known": known or {},
        "code_by": code_by,
        "lowers": lowers,
        "settings": settings or {},
    }
    result = in_child(lambda: (_followed(function, args, kwargs, found, **asked), found.trace))
    found_code, filled = (unlowered("ended"), trace) if result is None else result
    vars(trace).update(vars(filled))
    if found_code.unlowered is None and _compiles_backward_pass():
        # Graphs and graph breaks are those of the forward pass.
        found_code = replace(found_code, kernels=None, unlowered="compiled_autograd")
    return replace(found_code, seconds=time.perf_counter() - began)


def _compiles_backward_pass() -> bool:
    """Whether the program lets PyTorch compile whole backward passes (compiled autograd), across its own graphs."""
    config: Any = importlib.import_module("torch._dynamo.config")
    return torch.is_grad_enabled() and bool(getattr(config, "compiled_autograd", False))


def unlowered(why: Unlowered, reason: str | None = None) -> CompiledCode:
    """Code whose kernels are not known."""
    return CompiledCode(graphs=0, kernels=None, breaks=(), unlowered=why, reason=reason, seconds=0.0)


def flex_attention(query: Tensor, key: Tensor, value: Tensor, share: float) -> CompiledCode:
    """A compiled `flex_attention`: a kernel each way, which does this share of the products of an attention to all."""
    tensors = [getattr(tensor, "_inner", tensor) for tensor in (query, key, value)]
    needs_gradient = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (query, key, value))
    forward, backward = flex_calls(tensors, share)
    kernels = GraphKernels(forward=(forward,), backward=(backward,) if needs_gradient else ())
    return CompiledCode(graphs=1, kernels=kernels, breaks=(), reason=None, seconds=0.0)


def mask_share_of(values: Sequence[Any]) -> float:
    """The share of its blocks that the mask of a `flex_attention` leaves, by the first mask among some arguments."""
    mask = next((value for value in values if hasattr(value, "kv_num_blocks") and hasattr(value, "sparsity")), None)
    return 1.0 if mask is None else 1 - float(mask.sparsity()) / 100


def _followed(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], found: _Found, **asked: Any
) -> CompiledCode:
    """Follow code, record the result in `found`, and return its content; `asked` holds the rest of `_trace`'s."""
    why: Unlowered | None = None
    reason: str | None = None
    try:
        with silent():
            _trace(function, args, kwargs, found, **asked)
    except Exception as error:  # whatever Dynamo, Inductor or the program raises, the prediction goes on
        inner = getattr(error, "inner_exception", None) or error.__cause__ or error
        lines = [line.strip() for line in str(inner).splitlines() if line.strip()]
        reason = f"{type(inner).__name__}: {lines[0][:200] if lines else ''}"
        why = "not_lowered" if found.is_lowering else "not_followed"
    else:
        if asked["code_by"] == "other" and found.graphs:
            why = "backend"
        elif not found.graphs:
            why = "no_operators"
    kernels = GraphKernels(
        forward=tuple(call for calls in found.forward for call in calls),
        backward=tuple(call for calls in found.backward for call in calls),
    )
    return CompiledCode(
        graphs=found.graphs - found.graphs_known,
        kernels=None if why is not None else kernels,
        breaks=tuple(dict.fromkeys(found.breaks)),
        unlowered=why,
        reason=reason,
        seconds=0.0,
        kept_bytes=found.kept_bytes,
    )


class _GraphCompiler:
    """What Dynamo hands its graphs to, instead of a backend: notes their kernels in `found`, and makes no code.

    Args:
        found: what is noted.
        facts: the properties of the GPU.
        code_by: what would make code of the graphs.
        lowers: whether kernels are asked for, or graphs alone.
        settings: Inductor's, by name.
        known: earlier compilations, of this function and of those that are compiled with it.
        target: the code of the followed function.
    """

    def __init__(  # noqa: PLR0913
        self,
        found: _Found,
        *,
        facts: GpuFacts,
        code_by: Backend,
        lowers: bool,
        settings: Mapping[str, Any],
        known: Mapping[tuple[str, int, str], Sequence[Compiled]],
        target: object,
    ) -> None:
        self._found = found
        self._facts = facts
        self._code_by = code_by
        self._lowers = lowers
        self._target = target
        self._names: Mapping[str, Any] = {}
        #: What stands for numbers that are read at graph breaks. Each pass has another one, as each call reads others.
        self.number_read = ASSUMED_VALUE + (found.trace.number + 1) * _STEP
        self._settings = settings
        self._known = known
        #: The places of the call's arguments, by the identity of their fake tensors, and of the function and its owner.
        self.positions: dict[int, Any] = {}
        #: The fake tensors, by the identity of the program's.
        self.fakes: Mapping[int, Tensor] = {}
        #: How many graphs there are, and passes with kernels of each kind, at the end of the latest function.
        self._before = 0, 0, 0

    def compile(self, graph: Any, inputs: Sequence[Any]) -> Any:
        """Note the kernels of a graph; called by Dynamo, which gets something that runs as the graph would."""
        found = self._found
        graphs, forward, backward = self._before
        if found.graphs > graphs:
            # Dynamo has begun anew with a function, as where a number turns out to be constant.
            found.graphs = graphs
            del found.forward[forward:], found.backward[backward:]
        found.graphs += 1
        for node in graph.graph.nodes:
            if node.op == "call_function" and node.target is _ATTENTION:
                node.target = attention.of_fakes
        graph.recompile()
        if self._code_by == "other" or not (self._lowers or _has_numbers(graph)):
            return graph.forward
        if self._code_by == "cudagraphs":
            by_pass = {"fw_compiler": self._lower, "bw_compiler": partial(self._lower, is_backward=True)}
            return private(_OF_GRAPHS)(**by_pass)(graph, inputs)
        compile_fx: Any = importlib.import_module("torch._inductor.compile_fx")
        patches = {**self._settings, **_WITHOUT}
        return compile_fx.compile_fx(graph, list(inputs), inner_compile=self._lower, config_patches=patches)

    def _lower(self, graph: Any, inputs: Sequence[Any], **of_graph: Any) -> Callable[..., Any]:
        """Note the kernels of one pass of a graph, and return what stands for the pass."""
        found = self._found
        is_backward = bool(of_graph.get("is_backward"))
        if not is_backward:
            found.kept_bytes += _kept_bytes(graph)
        found.is_lowering = True
        is_inference = bool(of_graph.get("is_inference"))
        with private("torch.utils._python_dispatch._disable_current_modes")():
            if not self._lowers:
                launches = []
            elif self._code_by == "inductor":
                launches = launches_of(graph, inputs, self._facts, is_inference=is_inference, is_backward=is_backward)
            else:
                launches = operators_of(graph)
        found.is_lowering = False
        calls = [recorded_form(with_numbers(launch), found.mask_share) for launch in launches]
        (found.backward if is_backward else found.forward).append([call for call in calls if call is not None])

        def run(inputs: list[Any]) -> Any:
            values = list(inputs)
            inputs.clear()
            return graph(*values) if (known := _results_of(graph)) is None else known

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    def ends_function(self, code: types.CodeType, output: Any) -> None:
        """Note a function that is compiled, unless an earlier call has compiled it for what it gets."""
        found = self._found
        graphs = found.graphs - self._before[0]
        self._before = found.graphs, len(found.forward), len(found.backward)
        if code.co_filename.startswith(_OURS):
            return
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
        is_known, failed = fits(self._known.get(frame.key, ()), output, stands_for)
        if is_known:
            found.graphs_known += graphs
        else:
            found.trace.compiled[len(found.trace.frames)] = failed
        found.trace.frames.append(frame)


def _prepared(function: Any) -> tuple[Any, AbstractContextManager[None]]:
    """What Dynamo follows of a compiled module or function, and the context that it runs in."""
    if isinstance(function, nn.parallel.DistributedDataParallel):
        # Its own code only prepares the call. Its module is compiled, and Dynamo ends graphs at its buckets' ends.
        return function.module, function._inside_ddp_forward()
    if isinstance(function, nn.Module) and function in sharded_units(function):
        return function.forward, nullcontext()  # its hooks have run
    if getattr(function, "__name__", "") == _CALL and isinstance(getattr(function, "__self__", None), nn.Module):
        # `Module.compile` compiles this method. Dynamo follows a module, and would call the compiled method again.
        module: Any = function.__self__
        module._compiled_call_impl = None
        setattr(type(module), _CALL, vars(nn.Module)[_CALL])  # a compiled class has another one
        return module, nullcontext()
    return function, nullcontext()


def _surroundings(
    found: _Found, compiler: "_GraphCompiler", originals: Mapping[tuple[Any, str], Any]
) -> tuple[AbstractContextManager[Any], ...]:
    """The contexts in which Dynamo follows a call, to be entered in this order."""
    dynamo: Any = importlib.import_module("torch._dynamo")
    return (
        without_function_modes(),
        private("torch.utils._python_dispatch._disable_current_modes")(),
        as_without_prediction(originals),
        functions_known(originals),
        devices_named(),
        patterns_of_cpu(),
        _watching_breaks(found),
        _watching_guards(compiler.ends_function),
        compiling(),
        without_saved_tensor_hooks(),
        # Checkpoints ask for the module of their tensors' device.
        mock.patch.object(torch, backend.DEVICE_TYPE, torch.cuda, create=True),
        # Nothing is computed of constants on the device, which has no memory here.
        mock.patch.object(owner_of(_CONSTANTS), "CONSTANT_NUMEL_LIMIT", -1),
        dynamo.config.patch(suppress_errors=False, error_on_recompile=False, compiled_autograd=False),
        # Nothing that is kept on disk stands for a graph here.
        importlib.import_module("torch._functorch.config").patch(enable_autograd_cache=False),
    )


def _trace(  # noqa: PLR0913
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    found: _Found,
    *,
    facts: GpuFacts,
    dynamic: bool | None,
    originals: Mapping[tuple[Any, str], Any],
    known: Mapping[tuple[str, int, str], Sequence[Compiled]],
    code_by: Backend,
    lowers: bool,
    settings: Mapping[str, Any],
) -> None:
    """Let Dynamo follow a call on fake tensors, and then its backward pass; arguments as those of `capture`."""
    shapes: Any = importlib.import_module("torch.fx.experimental.symbolic_shapes")
    dynamo: Any = importlib.import_module("torch._dynamo")
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=shapes.ShapeEnv())
    fakes: dict[int, Tensor] = {}
    compiler = _GraphCompiler(
        found,
        facts=facts,
        code_by=code_by,
        lowers=lowers,
        settings=settings,
        known=known,
        target=code_of(function),
    )
    compiler.fakes = fakes
    compiler.positions = {id(function): TARGET, id(getattr(function, "__self__", function)): OWNER}
    function, parallel = _prepared(function)
    with ExitStack() as stack:
        for context in (parallel, *_surroundings(found, compiler, originals)):
            stack.enter_context(context)
        state = FakeState(mode, fakes)
        for reached in (function, inspect.unwrap(function), *args, *kwargs.values()):
            if not isinstance(reached, Tensor):
                state.faked(reached)
        fake_args, fake_kwargs = pytree.tree_map(lambda value: fake_of(value, mode, fakes), (list(args), dict(kwargs)))
        for place, leaf in enumerate(pytree.tree_leaves((fake_args, fake_kwargs))):
            if isinstance(leaf, Tensor):
                compiler.positions[id(leaf)] = place
        # A tensor from a literal begins on the CPU, where fake tensors support it. This process ends afterwards.
        private("torch._C._set_only_lift_cpu_tensors")(True)
        dynamo.reset_code_caches()
        stack.callback(dynamo.reset_code_caches)
        sizes: Any = importlib.import_module("torch._dynamo.pgo")
        sizes._CODE_STATE = collections.defaultdict(sizes.CodeState, found.trace.code_state or {})
        stack.enter_context(mode)
        # Dynamo follows each Python function that is called between two graphs, and must not follow ours.
        dispatch = dynamo.disable(_Reads.__torch_dispatch__)
        stack.enter_context(mock.patch.object(_Reads, "__torch_dispatch__", dispatch))
        stack.enter_context(_Reads(compiler.number_read))
        numbers: Any = private(_SPECIALIZED)
        numbers.force_specializations = set(found.trace.specialized)
        compiled = dynamo.optimize(compiler.compile, dynamic=dynamic)(function)
        try:
            results = compiled(*fake_args, **fake_kwargs)
        finally:
            found.trace.code_state = dict(sizes._CODE_STATE)
            found.trace.specialized = frozenset(numbers.force_specializations)
        outputs = [tensor for tensor in _tensors_in(results) if tensor.requires_grad]
        leaves = [tensor for tensor in fakes.values() if tensor.requires_grad]
        has_run_backward = bool(found.backward)  # the code itself
        if outputs and leaves and not has_run_backward and lowers and code_by != "other":
            torch.autograd.grad(outputs, leaves, [torch.ones_like(tensor) for tensor in outputs], allow_unused=True)


def _has_numbers(graph: Any) -> bool:
    """Whether a graph of Dynamo's has dynamic numbers of type float.

    Dynamo compiles its function again with a constant in place of each that an operator does not take as a tensor. Only
    the pass that makes graphs of ATen operators finds these.
    """
    return any(isinstance(node.meta.get("example_value"), torch.SymFloat) for node in graph.graph.nodes)


def _tensors_in(results: Any) -> Iterator[Tensor]:
    """The tensors of a function's results, which may be objects with attributes, such as a data class."""
    for leaf in pytree.tree_leaves(results):
        if isinstance(leaf, Tensor):
            yield leaf
        elif is_dataclass(leaf) and not isinstance(leaf, type):
            yield from _tensors_in([getattr(leaf, one.name, None) for one in fields(leaf)])
        elif not isinstance(leaf, nn.Module) and not str(type(leaf).__module__).startswith(OF_NO_PROGRAM):
            yield from (value for value in getattr(leaf, "__dict__", {}).values() if isinstance(value, Tensor))


def _results_of(graph: Any) -> list[Any] | None:
    """The results of a graph that no fake tensor can run through, as they were traced; None of any other graph.

    An operator that takes functions, such as `flex_attention`, is such one.
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


@contextmanager
def _watching_guards(noted: Callable[[types.CodeType, Any], None]) -> Iterator[None]:
    """Call a function for each function that Dynamo compiles, with its code and Dynamo's `OutputGraph`."""
    manager: Any = owner_of(_GUARDS)
    made = manager.__init__

    def making(self: Any, code: types.CodeType, output: Any, *args: Any, **kwargs: Any) -> None:
        noted(code, output)
        made(self, code, output, *args, **kwargs)

    with mock.patch.object(manager, "__init__", making):
        yield


@contextmanager
def _watching_breaks(found: _Found) -> Iterator[None]:
    translator: Any = importlib.import_module("torch._dynamo.symbolic_convert").InstructionTranslatorBase
    log = translator.log_graph_break

    def logged(self: Any, code_options: Any, reason: Any = "", exc: Any = None, *args: Any, **kwargs: Any) -> Any:
        stack = getattr(exc, "real_stack", None) or (self.frame_summary and [self.frame_summary()])
        if stack and stack[-1].filename.startswith(_OURS):
            return log(self, code_options, reason, exc, *args, **kwargs)
        file, line, code = place_of_stack(stack or [])
        kind = getattr(exc, "gb_type", None) or type(exc).__name__
        found.trace.error = found.trace.error or str(exc)
        by_pytorch = broken_by_pytorch(kind, (frame.filename for frame in stack or ()))
        if file is None and by_pytorch:
            innermost = stack[-1]
            file, line, code = innermost.filename, innermost.lineno, innermost.line
        found.breaks.append(
            GraphBreak(
                kind=kind,
                file=file and trace_file_name(file),
                line=line,
                code=code,
                by_pytorch=by_pytorch,
                hints=" ".join(hints_of(exc)) or None,
            )
        )
        return log(self, code_options, reason, exc, *args, **kwargs)

    with mock.patch.object(translator, "log_graph_break", logged):
        yield
