"""Finds the kernels of a compiled module or function, by Dynamo and Inductor on fake tensors of the virtual device.

Fake tensors stand for the program's while Dynamo follows its code, so nothing is computed, and the program does not
change. The forward and backward pass of each graph are lowered for the GPU (`steptrace.inductor.lower`), and their
kernels are recorded in the form of operators. A value that the code reads from a tensor counts as 1.
"""

import collections
import importlib
import inspect
import logging
import operator
import os
import pickle
import resource
import select
import signal
import time
import types
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import partial, wraps
from pathlib import Path
from typing import Any, Final, Literal, TypeVar
from unittest import mock

import torch
from torch import Tensor, nn

from steptrace.documents.compiled import CompiledCode, GraphBreak, GraphKernels, Unlowered
from steptrace.documents.estimate import OperatorCalls, TensorSpec
from steptrace.engine.compilations import broken_by_pytorch, hints_of
from steptrace.engine.frames import trace_file_name
from steptrace.estimate.kernel_classes import OWN_KERNELS
from steptrace.inductor.lower import FLEX_ATTENTION, Fused, GpuFacts, Launch, launches_of, operators_of
from steptrace.predict import attention, backend
from steptrace.predict.guards import OWNER, TARGET, Compiled, Failed, Frame, fits, frame_of
from steptrace.predict.operators import counted_flop, declared_cost, overload_of, tensor_specs, tensors_of
from steptrace.predict.places import place_of_stack
from steptrace.predict.pytorch import storage_key
from steptrace.predict.sharded import sharded_units
from steptrace.predict.tensor import is_virtual
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
#: Wraps operators with side effects.
_WITH_EFFECTS: Final = torch.ops.higher_order.with_effects
_CONVOLUTION: Final = torch.ops.aten.convolution.default
#: Names of operators that stand for kernels that Inductor writes.
POINTWISE: Final = "inductor.pointwise"
REDUCTION: Final = "inductor.reduction"
#: The size up to which values of constants are computed while a graph is traced.
_CONSTANTS: Final = "torch.fx.experimental.proxy_tensor.CONSTANT_NUMEL_LIMIT"
#: Inductor replaces products with 0.
_ZEROS: Final = "torch._inductor.fx_passes.joint_graph.UniformValueConstantFolder._add_peephole_patterns"
#: Makes a backend of functions that get graphs of ATen operators, forward and backward.
_OF_GRAPHS: Final = "torch._dynamo.backends.common.aot_autograd"
#: Makes the check of all that a compiled function depends on.
_GUARDS: Final = "torch._dynamo.guards.CheckFunctionManager.__init__"
#: The method of modules that `Module.compile` compiles.
_CALL: Final = "_call_impl"
#: The method of optimizers that makes their state at the first step.
_FIRST: Final = "_init_group"
#: Modules of Inductor that make their patterns at their first use.
_WITH_PATTERNS: Final = ("torch._inductor.fx_passes.joint_graph", "torch._inductor.fx_passes.post_grad")
#: What Dynamo does with each function of PyTorch.
_RULES: Final = "torch._dynamo.trace_rules.get_torch_obj_rule_map"
_FLASH: Final = "aten._scaled_dot_product_flash_attention.default"
_FLASH_BACKWARD: Final = "aten._scaled_dot_product_flash_attention_backward.default"
#: A child that takes more processor time, or three times as long, is ended.
_LONGEST_S: Final = 300
#: The first release whose Dynamo and Inductor are followed.
_OLDEST: Final = (2, 13)
#: The value of a tensor that the code reads while nothing is computed.
_ASSUMED_VALUE: Final = 1
#: How often a condition on a tensor holds. Then it does not, so that a loop that waits for it ends.
_MOST_TRUE: Final = 16
#: Beginnings of the names of what `mark_dynamic` and its like note on a tensor.
_MARKS: Final = ("_dynamo_", "_has_dynamo_", "_specialize")
#: Values without tensors in them.
_ATOMS: Final = (type(None), bool, int, float, complex, str, bytes, type, types.ModuleType, torch.dtype, torch.device)
#: How far into what a function reaches tensors are looked for.
_DEEPEST: Final = 12
#: Parts of PyTorch whose objects hold tensors of the program, or the optimizer that does.
_WITH_TENSORS: Final = ("torch.amp.", "torch.distributions.", "torch.nn.", "torch.optim.", "torch.utils.data.")
#: Beginnings of the names of modules whose objects hold none of the program's tensors, but for `_WITH_TENSORS`.
_OF_NO_PROGRAM: Final = (
    "torch.",
    "steptrace.",
    "builtins",
    "collections",
    "logging",
    "threading",
    "numpy",
    "multiprocessing",
)
#: Attributes of modules that are looked at by themselves.
_OF_MODULES: Final = ("_parameters", "_buffers", "_modules")
#: Files of this package: what Dynamo says of them is not about the program.
_OURS: Final = str(Path(__file__).parents[1])


@dataclass
class Trace:
    """What Dynamo says of a call that it has followed, beside its kernels.

    Attributes:
        frames: the functions that it compiles, in order, each with what it depends on.
        compiled: by place among them, those that no earlier call has compiled for the same sizes and values, with the
            guard that has failed; None of those that are compiled for the first time.
        code_state: which sizes and numbers have varied so far, in PyTorch's own form; None for none.
        error: PyTorch's message on the first graph break.
    """

    frames: list[Frame] = field(default_factory=list)
    compiled: dict[int, Failed | None] = field(default_factory=dict)
    code_state: Any = None
    error: str | None = None


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
    trace: "Trace" = field(default_factory=lambda: Trace())


class _Reads(_Mode):  # type: ignore[misc]
    """Answers what fake tensors cannot: a value that is read between two graphs."""

    conditions = 0

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
            return _ASSUMED_VALUE if not args[0].dtype.is_floating_point else float(_ASSUMED_VALUE)
        return func(*args, **(kwargs or {}))


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
    _make_patterns(originals)
    trace = Trace() if trace is None else trace
    found = _Found(mask_share=mask_share_of((*args, *kwargs.values())), trace=trace)
    asked: dict[str, Any] = {
        "facts": facts,
        "dynamic": dynamic,
        "originals": originals,
        "known": known or {},
        "code_by": code_by if lowers else "other",
        "settings": settings or {},
    }
    result = _in_child(lambda: (_followed(function, args, kwargs, found, **asked), found.trace))
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
    forward, backward = _flex_calls(tensors, share)
    kernels = GraphKernels(forward=(forward,), backward=(backward,) if needs_gradient else ())
    return CompiledCode(graphs=1, kernels=kernels, breaks=(), reason=None, seconds=0.0)


def _flex_calls(tensors: Sequence[Tensor], share: float) -> tuple[OperatorCalls, OperatorCalls]:
    """The kernels of `flex_attention`, forward and backward, as a flash attention's with this share of its products."""
    query, key, value = tensors
    inputs, outputs = tensor_specs(tensors), tensor_specs([query])
    batch, heads, length, width = map(int, query.shape)
    flop = int(2 * batch * heads * length * int(key.shape[2]) * (width + int(value.shape[3])) * share)
    forward = _call(_FLASH, inputs, outputs, flop=flop, arguments={})
    # Its backward pass has five products where the forward pass has two.
    backward = _call(_FLASH_BACKWARD, (*outputs, *inputs), inputs, flop=flop * 5 // 2, arguments={})
    return forward, backward


def mask_share_of(values: Sequence[Any]) -> float:
    """The share of its blocks that the mask of a `flex_attention` leaves, by the first mask among some arguments."""
    mask = next((value for value in values if hasattr(value, "kv_num_blocks") and hasattr(value, "sparsity")), None)
    return 1.0 if mask is None else 1 - float(mask.sparsity()) / 100


_Result = TypeVar("_Result")


def _in_child(work: Callable[[], _Result]) -> _Result | None:
    """Do some work in a forked child, and return its result; None if the child ends without one or takes too long.

    PyTorch's C++ ends the process if autograd meets a device that does not exist, and Dynamo runs code of the program,
    which may change the program's state. In a child neither harms the program.
    """
    read, write = os.pipe()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python 3.12 and later warn of threads
            child = os.fork()
    except OSError:  # there is not enough memory for another process
        os.close(read)
        os.close(write)
        return None
    if not child:
        status = 1
        try:
            os.close(read)
            silent = os.open(os.devnull, os.O_WRONLY)
            os.dup2(silent, 1)
            os.dup2(silent, 2)
            torch.set_num_threads(1)
            resource.setrlimit(resource.RLIMIT_CPU, (_LONGEST_S + int(time.process_time()), resource.RLIM_INFINITY))
            with os.fdopen(write, "wb") as pipe:
                pickle.dump(work(), pipe)
            status = 0
        finally:
            os._exit(status)
    os.close(write)
    content, ends = b"", time.monotonic() + 3 * _LONGEST_S
    poll = select.poll()  # unlike `select`, it takes any number of open files
    poll.register(read, select.POLLIN)
    with os.fdopen(read, "rb", buffering=0) as pipe:
        while (left := ends - time.monotonic()) > 0 and poll.poll(1000 * left):
            part = pipe.read(1 << 16)
            if not part:
                break
            content += part
        else:
            os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if status or not content:
        return None
    result: _Result = pickle.loads(content)
    return result


def _followed(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], found: _Found, **asked: Any
) -> CompiledCode:
    """Follow code, record the result in `found`, and return its content; `asked` holds the rest of `_trace`'s."""
    why: Unlowered | None = None
    reason: str | None = None
    try:
        with _silent():
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
    settings: Mapping[str, Any],
) -> None:
    shapes: Any = importlib.import_module("torch.fx.experimental.symbolic_shapes")
    compile_fx: Any = importlib.import_module("torch._inductor.compile_fx")
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=shapes.ShapeEnv())
    fakes: dict[int, Tensor] = {}

    def inner(graph: Any, inputs: Sequence[Any], **of_graph: Any) -> Callable[..., Any]:
        is_backward = bool(of_graph.get("is_backward"))
        if not is_backward:
            found.kept_bytes += _kept_bytes(graph)
        found.is_lowering = True
        is_inference = bool(of_graph.get("is_inference"))
        with private("torch.utils._python_dispatch._disable_current_modes")():
            if code_by == "inductor":
                launches = launches_of(graph, inputs, facts, is_inference=is_inference, is_backward=is_backward)
            else:
                launches = operators_of(graph)
        found.is_lowering = False
        calls = [_written(_with_numbers(launch), found.mask_share) for launch in launches]
        (found.backward if is_backward else found.forward).append([call for call in calls if call is not None])

        def run(inputs: list[Any]) -> Any:
            values = list(inputs)
            inputs.clear()
            return graph(*values) if (known := _results_of(graph)) is None else known

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    #: How many graphs there are, and passes with kernels of each kind, at the end of the latest function.
    before = 0, 0, 0

    def compiler(graph: Any, inputs: Sequence[Any]) -> Any:
        if (
            found.graphs > before[0]
        ):  # Dynamo has begun anew with a function, as where a number turns out to be constant
            found.graphs = before[0]
            del found.forward[before[1] :], found.backward[before[2] :]
        found.graphs += 1
        for node in graph.graph.nodes:
            if node.op == "call_function" and node.target is _ATTENTION:
                node.target = attention.of_fakes
        graph.recompile()
        if code_by == "other":
            return graph.forward
        if code_by == "cudagraphs":
            return private(_OF_GRAPHS)(fw_compiler=inner, bw_compiler=partial(inner, is_backward=True))(graph, inputs)
        return compile_fx.compile_fx(graph, list(inputs), inner_compile=inner, config_patches={**settings, **_WITHOUT})

    positions = {id(function): TARGET, id(getattr(function, "__self__", function)): OWNER}

    def noted(code: types.CodeType, output: Any) -> None:
        """Note a function that is compiled, unless an earlier call has compiled it for what it gets."""
        nonlocal before
        graphs = found.graphs - before[0]
        before = found.graphs, len(found.forward), len(found.backward)
        if code.co_filename.startswith(_OURS):
            return
        frame = frame_of(code, output, graphs=graphs, arguments=positions)
        is_known, failed = fits(known.get(frame.key, ()), output)
        if is_known:
            found.graphs_known += graphs
        else:
            found.trace.compiled[len(found.trace.frames)] = failed
        found.trace.frames.append(frame)

    dynamo: Any = importlib.import_module("torch._dynamo")
    parallel: AbstractContextManager[None] = nullcontext()
    if isinstance(function, nn.parallel.DistributedDataParallel):
        # Its own code only prepares the call. Its module is compiled, and Dynamo ends graphs at its buckets' ends.
        parallel, function = function._inside_ddp_forward(), function.module
    elif isinstance(function, nn.Module) and function in sharded_units(function):
        function = function.forward  # its hooks have run
    elif getattr(function, "__name__", "") == _CALL and isinstance(getattr(function, "__self__", None), nn.Module):
        # `Module.compile` compiles this method. Dynamo follows a module, and would call the compiled method again.
        module: Any = getattr(function, "__self__")  # noqa: B009 - a Callable has none for the type checker
        module._compiled_call_impl = None
        setattr(type(module), _CALL, vars(nn.Module)[_CALL])  # a compiled class has another one
        function = module
    with ExitStack() as stack:
        for context in (
            parallel,
            _without_function_modes(),
            private("torch.utils._python_dispatch._disable_current_modes")(),
            _originals(originals),
            _functions_known(originals),
            _devices_named(),
            _patterns_of_cpu(),
            _watching_breaks(found),
            _watching_guards(noted),
            _compiling(),
            _without_saved_tensor_hooks(),
            # Checkpoints ask for the module of their tensors' device.
            mock.patch.object(torch, backend.DEVICE_TYPE, torch.cuda, create=True),
            # Nothing is computed of constants on the device, which has no memory here.
            mock.patch.object(owner_of(_CONSTANTS), "CONSTANT_NUMEL_LIMIT", -1),
            dynamo.config.patch(suppress_errors=False, error_on_recompile=False, compiled_autograd=False),
            # Nothing that is kept on disk stands for a graph here.
            importlib.import_module("torch._functorch.config").patch(enable_autograd_cache=False),
        ):
            stack.enter_context(context)
        state = _State(mode, fakes)
        for reached in (function, inspect.unwrap(function), *args, *kwargs.values()):
            if not isinstance(reached, Tensor):
                state.faked(reached)
        fake_args, fake_kwargs = pytree.tree_map(lambda value: _fake(value, mode, fakes), (list(args), dict(kwargs)))
        positions.update(
            (id(leaf), place) for place, leaf in enumerate(pytree.tree_leaves((fake_args, fake_kwargs)))
            if isinstance(leaf, Tensor)
        )  # fmt: skip
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
        stack.enter_context(_Reads())
        compiled = dynamo.optimize(compiler, dynamic=dynamic)(function)
        try:
            results = compiled(*fake_args, **fake_kwargs)
        finally:
            found.trace.code_state = dict(sizes._CODE_STATE)
        outputs = [tensor for tensor in _tensors_in(results) if tensor.requires_grad]
        leaves = [tensor for tensor in fakes.values() if tensor.requires_grad]
        if (
            outputs and leaves and not found.backward and code_by != "other"
        ):  # unless the code has run its backward pass itself
            torch.autograd.grad(outputs, leaves, [torch.ones_like(tensor) for tensor in outputs], allow_unused=True)


def _tensors_in(results: Any) -> Iterator[Tensor]:
    """The tensors of a function's results, which may be objects with attributes, such as a data class."""
    for leaf in pytree.tree_leaves(results):
        if isinstance(leaf, Tensor):
            yield leaf
        elif is_dataclass(leaf) and not isinstance(leaf, type):
            yield from _tensors_in([getattr(leaf, one.name, None) for one in fields(leaf)])
        elif not isinstance(leaf, nn.Module) and not str(type(leaf).__module__).startswith(_OF_NO_PROGRAM):
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
    return sum(_number(tensor.untyped_storage().nbytes()) for tensor in tensors if tensor.layout is torch.strided)


def _storage(node: Any) -> int | None:
    value = node.meta.get("val")
    return storage_key(value.untyped_storage()) if isinstance(value, Tensor) else None


def _fake(value: Any, mode: FakeTensorMode, fakes: dict[int, Tensor]) -> Any:
    """A fake tensor on the device of a tensor, one for each tensor; any other value stays as it is."""
    if not isinstance(value, Tensor) or isinstance(value, FakeTensor):
        return value
    if id(value) not in fakes:
        if value.is_nested:
            raise NotImplementedError(
                "a jagged tensor is an argument; only those that the code makes itself are followed"
            )
        inside: Tensor = getattr(value, "_inner", value)
        device = backend.device(getattr(value, "gpu", 0)) if is_virtual(value) else torch.device("cpu")
        empty = torch.empty_strided(inside.shape, inside.stride(), dtype=inside.dtype, device="meta")
        fake: Tensor = FakeTensor(mode, empty, device)
        if isinstance(value, nn.Parameter):
            fake = nn.Parameter(fake, requires_grad=value.requires_grad)
        elif value.requires_grad:
            fake.requires_grad_()
        vars(fake).update((name, mark) for name, mark in vars(value).items() if name.startswith(_MARKS))
        fakes[id(value)] = fake
    return fakes[id(value)]


class _State:
    """Puts fake tensors into all that a function can reach: modules, optimizers, closures, globals, objects.

    Nothing is put back: this process is a child that ends afterwards.
    """

    def __init__(self, mode: FakeTensorMode, fakes: dict[int, Tensor]) -> None:
        self._mode, self._fakes = mode, fakes
        #: By identity what has been seen; it stays alive, so that no other object gets its identity.
        self._seen: dict[int, Any] = {}

    def faked(self, value: Any, depth: int = 0) -> Any:
        """The value with fake tensors: itself, changed in place, or a fake tensor or a tuple in place of it."""
        if isinstance(value, Tensor):
            self._seen[id(value)] = value
            # A tensor on the CPU is made fake where Dynamo meets it, and has its values where the program reads it.
            return _fake(value, self._mode, self._fakes) if is_virtual(value) else value
        if isinstance(value, _ATOMS) or depth > _DEEPEST:
            return value
        if isinstance(value, tuple):
            parts = [self.faked(part, depth + 1) for part in value]
            if all(map(operator.is_, parts, value)):
                return value
            return tuple.__new__(type(value), parts)  # a named tuple stays one
        if id(value) in self._seen:
            return value
        self._seen[id(value)] = value
        if isinstance(value, list | collections.deque):
            parts = [self.faked(part, depth + 1) for part in value]
            value.clear()
            value.extend(parts)
        elif isinstance(value, set):
            parts = [self.faked(part, depth + 1) for part in value]
            value.clear()
            value.update(parts)
        elif isinstance(value, weakref.ref):
            self.faked(value(), depth + 1)
        elif isinstance(value, dict):
            self._mapping(value, depth)
        elif isinstance(value, nn.Module):
            for part in value.modules():
                self._module(part, depth)
        elif isinstance(value, torch.optim.Optimizer):
            self._optimizer(value)
        elif isinstance(value, types.FunctionType):
            self._function(value, depth)
        elif isinstance(value, types.MethodType):
            self.faked(value.__self__, depth + 1)
            self.faked(value.__func__, depth + 1)
        elif isinstance(value, partial):
            args, keywords = self.faked(value.args, depth + 1), self.faked(value.keywords, depth + 1)
            state: Any = value
            state.__setstate__((self.faked(value.func, depth + 1), args, keywords, vars(value)))
        elif _may_hold_tensors(type(value)):
            self._mapping(getattr(value, "__dict__", {}), depth)
            self._slots(value, depth)
        return value

    def _slots(self, value: Any, depth: int) -> None:
        for name in _slots_of(type(value)):
            part = getattr(value, name, None)
            faked = self.faked(part, depth + 1)
            if faked is not part:
                object.__setattr__(value, name, faked)

    def _mapping(self, values: Any, depth: int) -> None:
        for name, part in list(values.items()):
            faked = self.faked(part, depth + 1)
            if faked is not part:
                values[name] = faked

    def _module(self, module: nn.Module, depth: int) -> None:
        attributes = vars(module)
        if id(attributes) in self._seen:
            return
        self._seen[id(attributes)] = attributes
        for tensors in (attributes.get("_parameters", {}), attributes.get("_buffers", {})):
            self._seen.update((id(tensor), tensor) for tensor in tensors.values())
            tensors.update({name: _fake(value, self._mode, self._fakes) for name, value in tensors.items()})
        self._mapping({name: value for name, value in attributes.items() if name not in _OF_MODULES}, depth)
        for name, value in list(attributes.items()):
            if isinstance(value, Tensor | tuple):
                attributes[name] = self.faked(value, depth + 1)

    def _optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        mode, fakes = self._mode, self._fakes
        for group in optimizer.param_groups:
            self._seen.update((id(value), value) for value in (*group["params"], *group.values()))
            group["params"] = [_fake_with_gradient(parameter, mode, fakes) for parameter in group["params"]]
            # A learning rate may be a tensor.
            group.update({name: _fake(value, mode, fakes) for name, value in group.items()})
        # Dynamo calls this method as it is, and what it makes on the device has to be fake, too.
        first = getattr(optimizer, _FIRST, None)
        if first is not None:
            setattr(optimizer, _FIRST, _in_mode(first, mode))
        state = {
            _fake(parameter, mode, fakes): {name: _fake(value, mode, fakes) for name, value in values.items()}
            for parameter, values in optimizer.state.items()
        }
        self._seen[id(optimizer.state)] = dict(optimizer.state)
        optimizer.state.clear()
        optimizer.state.update(state)

    def _function(self, function: types.FunctionType, depth: int) -> None:
        if str(function.__module__).startswith(_OF_NO_PROGRAM) and not function.__closure__:
            return
        for cell in function.__closure__ or ():
            if _filled(cell):
                cell.cell_contents = self.faked(cell.cell_contents, depth + 1)
        function.__defaults__ = self.faked(function.__defaults__, depth + 1)
        self.faked(function.__kwdefaults__, depth + 1)
        self._mapping(vars(function), depth)
        names = function.__globals__
        for name in _names_in(function.__code__):
            if name in names:
                names[name] = self.faked(names[name], depth + 1)


def _may_hold_tensors(kind: type) -> bool:
    """Whether objects of a class may hold tensors of the program."""
    return not f"{kind.__module__}.".startswith(_OF_NO_PROGRAM) or f"{kind.__module__}.".startswith(_WITH_TENSORS)


def _slots_of(kind: type) -> Iterator[str]:
    """Names of attributes that objects of a class hold outside of a dictionary (`__slots__`)."""
    for base in kind.__mro__:
        slots = vars(base).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__"):
                # The class mangles private names.
                yield f"_{base.__name__.lstrip('_')}{name}" if name.startswith("__") else name


def _names_in(code: types.CodeType) -> Iterator[str]:
    """Names that a function and the functions in it use, globals among them."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_in(constant)


def _in_mode(function: Callable[..., Any], mode: FakeTensorMode) -> Callable[..., Any]:
    @wraps(function)
    def within(*args: Any, **kwargs: Any) -> Any:
        with mode:
            return function(*args, **kwargs)

    return within


def _fake_with_gradient(parameter: Tensor, mode: FakeTensorMode, fakes: dict[int, Tensor]) -> Tensor:
    fake = _fake(parameter, mode, fakes)
    assert isinstance(fake, Tensor)
    if parameter.grad is not None:
        fake.grad = _fake(parameter.grad, mode, fakes)
    return fake


def _filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


@contextmanager
def _without_function_modes() -> Iterator[None]:
    modes = []
    while private("torch._C._len_torch_function_stack")():
        modes.append(private("torch._C._pop_torch_function_stack")())
    try:
        yield
    finally:
        for mode in reversed(modes):
            private("torch._C._push_on_torch_function_stack")(mode)


@contextmanager
def _compiling() -> Iterator[None]:
    """Let Dynamo compile, which a prediction forbids in the program."""
    with torch.compiler.set_stance("default"):
        yield


@contextmanager
def _without_saved_tensor_hooks() -> Iterator[None]:
    """Leave the hooks of the program around a call, such as a checkpoint's, which would run its code with real tensors.

    They are not put back: this process is a child that ends afterwards.
    """
    while private("torch._C._autograd._top_saved_tensors_default_hooks")(True) is not None:
        private("torch._C._autograd._pop_saved_tensors_default_hooks")()
    yield


@contextmanager
def _originals(originals: Mapping[tuple[Any, str], Any]) -> Iterator[None]:
    with ExitStack() as stack:
        for (owner, name), value in originals.items():
            stack.enter_context(mock.patch.object(owner, name, value))
        yield


@contextmanager
def _functions_known(originals: Mapping[tuple[Any, str], Any]) -> Iterator[None]:
    """Dynamo knows PyTorch's functions that have their own form here; `_originals` has given them back.

    It keeps a table of them, and makes that table anew at `init_process_group`. That may be after a prediction has
    replaced some of them. Other functions that a prediction replaces stay replaced, and are followed as Python code.
    """
    table = private(_RULES)
    given_back = {id(function) for function in originals.values()}
    table().update({function: rule for function, rule in table.__wrapped__().items() if id(function) in given_back})
    yield


@contextmanager
def _devices_named() -> Iterator[None]:
    """Code sees tensors of CUDA, while the fake ones lie on the virtual device, which autograd knows."""
    variable: Any = importlib.import_module("torch._dynamo.variables.tensor").TensorVariable
    tracker: Any = importlib.import_module("torch._dynamo.variables.base").VariableTracker
    dispatch = FakeTensorMode.dispatch

    def named(self: Any, tx: Any) -> Any:
        device = self.device
        if device is not None and device.type == backend.DEVICE_TYPE:
            device = torch.device("cuda", device.index)
        return None if device is None else tracker.build(tx, device)

    def cuda(self: Any, tx: Any, device: Any = None, non_blocking: Any = None, **options: Any) -> Any:
        """`Tensor.cuda`, which asks for a GPU, as `Tensor.to`."""
        wanted = 0 if device is None else device.as_python_constant()
        place = torch.device("cuda", wanted or 0) if wanted is None or isinstance(wanted, int) else torch.device(wanted)
        options = options if non_blocking is None else {**options, "non_blocking": non_blocking}
        return self.call_method(tx, "to", [tracker.build(tx, place)], options)

    def is_cuda(self: Any, tx: Any) -> Any:
        return None if self.device is None else tracker.build(tx, self.device.type in ("cuda", backend.DEVICE_TYPE))

    def virtual(value: Any) -> Any:
        on_cuda = isinstance(value, torch.device) and value.type == "cuda"
        return backend.device(value.index or 0) if on_cuda else value

    def dispatching(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args = tuple(map(virtual, args))
        kwargs = {name: virtual(value) for name, value in (kwargs or {}).items()}
        devices = [device for device in (*args, *kwargs.values()) if isinstance(device, torch.device)]
        if all(device.type != backend.DEVICE_TYPE for device in devices):
            return dispatch(self, func, types, args, kwargs)
        # What is known of a constant would be computed on the device, which has no memory here.
        constants = [(tensor, tensor.constant) for tensor in args if isinstance(tensor, FakeTensor)]
        for tensor, _ in constants:
            tensor.constant = None
        try:
            return dispatch(self, func, types, args, kwargs)
        finally:
            for tensor, constant in constants:
                tensor.constant = constant

    def formatted(self: Any, spec: str) -> str:
        """The text of a value that the code formats between two graphs."""
        return format(float(_ASSUMED_VALUE), spec) if not self.dim() else repr(self)

    def never(_: object) -> bool:
        return False

    of_optimizers: Any = importlib.import_module("torch.optim.optimizer")
    fused = of_optimizers._get_fused_kernels_supported_devices

    def with_fused() -> list[str]:
        return [*fused(), backend.DEVICE_TYPE]

    # It asks CUDA's allocator, which a build for the CPU does not have.
    optimizers: Any = importlib.import_module("torch._dynamo.variables.optimizer")
    with (
        mock.patch.object(optimizers, "_is_static_for_cudagraphs", never),
        mock.patch.object(of_optimizers, "_get_fused_kernels_supported_devices", with_fused),
        mock.patch.object(variable, "method_attr_device", named),
        mock.patch.object(variable, "method_attr_is_cuda", is_cuda),
        mock.patch.object(variable, "method_cuda", cuda, create=True),
        mock.patch.object(FakeTensorMode, "dispatch", dispatching),
        mock.patch.object(FakeTensor, "__format__", formatted, create=True),
    ):
        yield


def _make_patterns(originals: Mapping[tuple[Any, str], Any]) -> None:
    """Import Inductor and make its patterns, which takes seconds, before the first child: all children inherit them.

    Args:
        originals: see `capture`.
    """
    with suppress(Exception), ExitStack() as stack:  # a child tries again, and says what has failed
        importlib.import_module("torch._inductor.compile_fx")
        for context in (
            _silent(),
            _without_function_modes(),
            private("torch.utils._python_dispatch._disable_current_modes")(),
            _originals(originals),
            _patterns_of_cpu(),
        ):
            stack.enter_context(context)
        for name in _WITH_PATTERNS:
            importlib.import_module(name).lazy_init()  # patched: see `_on_cpu`


@contextmanager
def _patterns_of_cpu() -> Iterator[None]:
    """Inductor's patterns are traced on the CPU: on the virtual device nothing can be made without a prediction."""
    with ExitStack() as stack:
        for name in _WITH_PATTERNS:
            module: Any = importlib.import_module(name)
            patterns_of_device = name == "torch._inductor.fx_passes.joint_graph"
            made = _on_cpu(module.lazy_init) if patterns_of_device else _without_device(module.lazy_init)
            stack.enter_context(mock.patch.object(module, "lazy_init", made))
        folder: Any = importlib.import_module("torch._inductor.fx_passes.joint_graph").UniformValueConstantFolder
        stack.enter_context(mock.patch.object(folder, "_deduce_value", _folding_on_cpu(folder._deduce_value)))
        replace_zeros = private(_ZEROS)
        if replace_zeros is not None:
            stack.enter_context(mock.patch.object(folder, "_add_peephole_patterns", _filling_on_cpu(replace_zeros)))
        yield


def _folding_on_cpu(deduce: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Inductor computes constants on the device of their graph, which here has no memory."""

    def on_cpu(value: Any) -> Any:
        on_gpu = isinstance(value, torch.device) and value.type in ("cuda", backend.DEVICE_TYPE)
        return torch.device("cpu") if on_gpu else value

    def deduce_value(self: Any, node: Any) -> Any:
        args, kwargs = node.args, node.kwargs
        node.args = tuple(map(on_cpu, args))
        node.kwargs = {name: on_cpu(value) for name, value in kwargs.items()}
        try:
            return deduce(self, node)
        finally:
            node.args, node.kwargs = args, kwargs

    return deduce_value


def _filling_on_cpu(method: Callable[[Any], None]) -> Callable[[Any], None]:
    """The same for constants that Inductor fills in: `torch.full` makes them on the CPU."""
    full = torch.full

    def filled(size: Any, value: Any, **options: Any) -> Tensor:
        return full(size, value, **{**options, "device": "cpu"})

    def on_cpu(self: Any) -> None:
        with mock.patch.object(torch, "full", filled):
            method(self)

    return on_cpu


def _on_cpu(lazy_init: Callable[..., None]) -> Callable[..., None]:
    return lambda _device=None: lazy_init(torch.device("cpu"))


def _without_device(lazy_init: Callable[..., None]) -> Callable[..., None]:
    """Return a call of `lazy_init` with no argument, as Inductor itself calls it.

    Inductor remembers for which argument its patterns were made. With another argument it would make them again in this
    process when the program compiles for real, and it refuses a pattern that is there twice.
    """
    return lambda _device=None: lazy_init()


@contextmanager
def _silent() -> Iterator[None]:
    """Show no log of Dynamo and Inductor: the result says what stopped them."""
    names = ("torch._dynamo", "torch._inductor", "torch._functorch", "torch.__trace")
    loggers = [logging.getLogger(name) for name in names]
    with ExitStack() as stack, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            stack.callback(logger.setLevel, logger.level)
            logger.setLevel(logging.CRITICAL + 1)
        yield


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


def _with_numbers(launch: Launch) -> Launch:
    """A launch whose dynamic sizes are numbers."""
    if isinstance(launch, Fused):
        return launch
    args, kwargs, result = pytree.tree_map(_with_number, (launch.args, launch.kwargs, launch.result))
    return replace(launch, args=args, kwargs=kwargs, result=result)


def _with_number(value: Any) -> Any:
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return _number(value)
    if not isinstance(value, FakeTensor) or value.layout is not torch.strided:
        return value
    sizes, strides = tuple(value.shape), tuple(value.stride())
    if not any(isinstance(size, torch.SymInt) for size in (*sizes, *strides)):
        return value
    numbers = [[_number(size) for size in dimensions] for dimensions in (sizes, strides)]
    empty = torch.empty_strided(*numbers, dtype=value.dtype, device="meta")
    return FakeTensor(FakeTensorMode(), empty, value.fake_device)


def _number(value: Any) -> Any:
    """The value of a dynamic size when its graph was traced; 1 of one that depends on the values of tensors.

    To convert it in any other way would make it a constant of the code.
    """
    node = getattr(value, "node", None)
    if node is None:
        return value
    return node.hint if node.has_hint() else _ASSUMED_VALUE


def _written(launch: Launch, mask_share: float) -> OperatorCalls | None:
    """A launch in the form of a recorded operator, without a line: compiled code has the line of its call."""
    if isinstance(launch, Fused):
        return _call(
            REDUCTION if launch.is_reduction else POINTWISE,
            arguments={"read": launch.read, "written": launch.written, "operators": len(launch.operators)},
        )
    if launch.operator in FLEX_ATTENTION:
        return _flex_calls(launch.args[:3], mask_share)[FLEX_ATTENTION.index(launch.operator)]
    if launch.operator is _WITH_EFFECTS:  # an operator that others may not overtake, as a check of a result
        launch = replace(launch, operator=launch.args[1], args=launch.args[2:])
    if isinstance(launch.operator, HigherOrderOperator):  # such as a kernel in Triton of the program's own
        tensors, results = map(pytree.tree_leaves, ((launch.args, launch.kwargs), launch.result))
        tensors, results = ([leaf for leaf in leaves if isinstance(leaf, Tensor)] for leaves in (tensors, results))
        name = f"{OWN_KERNELS}.{launch.operator.name()}"
        return _call(name, tensor_specs(tensors), tensor_specs(results), arguments={})
    overload = overload_of(launch.operator)
    values = (*launch.args, *launch.kwargs.values())
    inputs = tensor_specs(tensors_of(values))
    if launch.operator is _CONVOLUTION:
        inputs = inputs[:2]  # Inductor adds a bias in the kernel that follows
    if len(launch.layouts) == len(inputs):  # Inductor may lay tensors out in another way than the code does
        inputs = tuple(replace(tensor, strides=strides) for tensor, strides in zip(inputs, launch.layouts, strict=True))
    outputs = tensor_specs(tensors_of((launch.result,)))
    if launch.layout is not None and len(outputs) == 1:
        outputs = (replace(outputs[0], strides=launch.layout),)
    flop = 0
    if overload.flop is not None:
        flop = counted_flop(overload.flop, launch.args, launch.kwargs, launch.result)
    recorded = overload.bind(launch.args, launch.kwargs) if overload.recorded else {}
    arguments = {
        name: isinstance(recorded[name], Tensor) or recorded[name] for name in overload.recorded if name in recorded
    }
    recorded_call = _call(
        str(launch.operator), inputs, outputs, flop=flop, is_view=overload.is_view, arguments=arguments
    )
    return replace(recorded_call, cost=declared_cost(overload, launch.args, launch.kwargs))


def _call(
    name: str,
    inputs: tuple[TensorSpec, ...] = (),
    outputs: tuple[TensorSpec, ...] = (),
    *,
    flop: int = 0,
    is_view: bool = False,
    arguments: Mapping[str, Any],
) -> OperatorCalls:
    return OperatorCalls(
        name=name, inputs=inputs, outputs=outputs, is_view=is_view, flop=flop, calls=1, phase="", file=None, line=None,
        arguments=dict(arguments),
    )  # fmt: skip
