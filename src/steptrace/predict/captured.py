"""Finds the kernels of a compiled module or function, by Dynamo and Inductor on fake tensors of the virtual device.

Fake tensors stand for the program's while Dynamo follows its code, so nothing is computed, and the program does not
change. The forward and backward pass of each graph are lowered for the GPU (`steptrace.inductor.lower`), and their
kernels are recorded in the form of operators. A value that the code reads from a tensor counts as 1.
"""

import collections
import importlib
import inspect
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import fields, is_dataclass, replace
from functools import partial
from typing import Any, Final
from unittest import mock

import torch
from torch import Tensor, nn

from steptrace import foreign_messages as messages
from steptrace.documents.compiled import CompiledCode, GraphKernels, Unlowered
from steptrace.engine.frames import LOOK_PAST, OURS
from steptrace.inductor.lower import GpuFacts
from steptrace.predict import backend
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
from steptrace.predict.dynamo_notes import Notes, TracedCall, note_break, watching_breaks, watching_guards
from steptrace.predict.fake_fallback import TooLargeError, fallbacks_on_host
from steptrace.predict.fake_reads import ReadsBetweenGraphs, answered
from steptrace.predict.fake_state import OF_NO_PROGRAM, FakeState, fake_of
from steptrace.predict.graph_compiler import Backend, CaptureOptions, GraphCompiler
from steptrace.predict.guards import OWNER, TARGET, Compiled, code_of
from steptrace.predict.kernel_calls import flex_calls
from steptrace.predict.pytorch import is_uninitialized
from steptrace.predict.sharded import sharded_units
from steptrace.torch_names import losses_of, missing, owner_of, private, release_of

FakeTensorMode: Any = private("torch._subclasses.fake_tensor.FakeTensorMode")
pytree: Any = private("torch.utils._pytree")
#: The size up to which values of constants are computed while a graph is traced.
_CONSTANTS: Final = "torch.fx.experimental.proxy_tensor.CONSTANT_NUMEL_LIMIT"
#: The class of the masks of `flex_attention`.
_MASK: Final = "torch.nn.attention.flex_attention.BlockMask"
#: Holds Dynamo's names of the numbers that it has found to be constants.
_SPECIALIZED: Final = "torch._dynamo.symbolic_convert.TensorifyState"
#: The method of modules that `Module.compile` compiles.
_CALL: Final = "_call_impl"
#: How often a call is followed anew with another answer, as the program's own code raises an error.
_MOST_ANSWERS: Final = 3
#: PyTorch's error at a graph break that a program forbids, and where Dynamo cannot trace an operator.
UNSUPPORTED: Final = "torch._dynamo.exc.Unsupported"
UNTRACEABLE: Final = "torch._dynamo.exc.TorchRuntimeError"
#: The first release whose Dynamo and Inductor are followed.
_OLDEST: Final = (2, 13)


def capture(  # noqa: PLR0913
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    facts: GpuFacts,
    dynamic: bool | None = None,
    originals: Mapping[tuple[Any, str], Any],
    trace: TracedCall | None = None,
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
    trace = TracedCall() if trace is None else trace
    options = CaptureOptions(
        facts=facts,
        dynamic=dynamic,
        originals=originals,
        known=known or {},
        code_by=code_by,
        lowers=lowers,
        settings=settings or {},
    )
    share = mask_share_of((*args, *kwargs.values()))
    fails: frozenset[int] = frozenset()
    for _ in range(_MOST_ANSWERS):
        notes = Notes(mask_share=share, trace=trace, fails=fails)
        result = in_child(partial(_in_child, function, args, kwargs, notes, options))
        code, filled, refuted = (unlowered("ended"), trace, None) if result is None else result
        if refuted is None:
            break
        fails |= {refuted}
    vars(trace).update(vars(filled))
    if code.unlowered is None and _compiles_backward_pass():
        # Graphs and graph breaks are those of the forward pass.
        code = replace(code, kernels=None, unlowered="compiled_autograd")
    return replace(code, seconds=time.perf_counter() - began)


def _in_child(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], notes: Notes, options: CaptureOptions
) -> tuple[CompiledCode, TracedCall, int | None]:
    """The code, what Dynamo says, and the last condition on tensors if the program's own code raises an error then."""
    _initialize_lazy_modules(function, args, kwargs)
    code = _followed(function, args, kwargs, notes, options)
    refuted = notes.conditions if notes.raised_by_program and notes.conditions else None
    return code, notes.trace, refuted


def _initialize_lazy_modules(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Give lazy modules their weights, as their first call does before Dynamo follows them."""
    module = function if isinstance(function, nn.Module) else getattr(function, "__self__", None)
    if isinstance(module, nn.Module) and any(map(is_uninitialized, (*module.parameters(), *module.buffers()))):
        with suppress(Exception), torch.no_grad():  # the program will meet the same error
            function(*args, **kwargs)


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
    """The share of the blocks that a `flex_attention` computes, by the first mask among some arguments."""
    kind = private(_MASK)
    mask = next((value for value in values if kind is not None and isinstance(value, kind)), None)
    return 1.0 if mask is None else 1 - float(mask.sparsity()) / 100


def _followed(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    notes: Notes,
    options: CaptureOptions,
) -> CompiledCode:
    """Follow code, fill `notes`, and return their content."""
    why: Unlowered | None = None
    reason: str | None = None
    try:
        with silent():
            _trace(function, args, kwargs, notes, options)
    except Exception as error:  # whatever Dynamo, Inductor or the program raises, the prediction goes on
        inner = _innermost(error)
        notes.raised_by_program = _is_of_program(error)
        notes.trace.ends = _that_ends_the_program(error)
        if type(error) is private(UNSUPPORTED):
            note_break(notes, getattr(error, "real_stack", None) or [], error)
        lines = [line.strip() for line in str(inner).splitlines() if line.strip()]
        reason = f"{type(inner).__name__}: {lines[0][:200] if lines else ''}"
        why = "not_lowered" if notes.is_lowering else "not_followed"
    else:
        if options.code_by == "other" and notes.graphs:
            why = "backend"
        elif not notes.graphs:
            why = "no_operators"
    kernels = GraphKernels(
        forward=tuple(call for calls in notes.forward for call in calls),
        backward=tuple(call for calls in notes.backward for call in calls),
    )
    return CompiledCode(
        graphs=notes.graphs - notes.graphs_known,
        kernels=None if why is not None else kernels,
        breaks=tuple(dict.fromkeys(notes.breaks)),
        unlowered=why,
        reason=reason,
        seconds=0.0,
        kept_bytes=notes.kept_bytes,
    )


def _innermost(error: BaseException) -> BaseException:
    """The error that says why code was not followed: the one in Dynamo's, or a limit of the prediction."""
    led: BaseException | None = error
    seen: set[int] = set()
    while led is not None and id(led) not in seen:
        if isinstance(led, TooLargeError):
            return led
        seen.add(id(led))
        led = led.__cause__ or led.__context__
    inner: BaseException = getattr(error, "inner_exception", None) or error.__cause__ or error
    return inner


def _is_of_program(error: BaseException) -> bool:
    """Whether code of the program, and not of PyTorch, has raised an error."""
    lines = traceback.extract_tb(error.__traceback__)
    return bool(lines) and not lines[-1].filename.startswith((*LOOK_PAST, *OURS))


def _that_ends_the_program(error: Exception) -> tuple[str, str] | None:
    """The name of the error's class and its message if PyTorch ends the program with it.

    That is where a program asks for an error at a graph break (`torch._dynamo.error_on_graph_break`), or calls an
    operator of its own that has no form for fake tensors.
    """
    if type(error) is private(UNSUPPORTED):
        return UNSUPPORTED, str(error)
    if type(error) is private(UNTRACEABLE) and messages.DYNAMO_NO_FAKE.find(error) is not None:
        return UNTRACEABLE, str(error)
    return None


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
    notes: Notes, compiler: GraphCompiler, originals: Mapping[tuple[Any, str], Any]
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
        fallbacks_on_host(),
        watching_breaks(notes),
        watching_guards(compiler.ends_function),
        compiling(),
        without_saved_tensor_hooks(),
        # Checkpoints ask for the module of their tensors' device.
        mock.patch.object(torch, backend.DEVICE_TYPE, torch.cuda, create=True),
        # Nothing is computed of constants on the device, which has no memory here.
        mock.patch.object(owner_of(_CONSTANTS), "CONSTANT_NUMEL_LIMIT", -1),
        dynamo.config.patch(suppress_errors=False, error_on_recompile=False, compiled_autograd=False),
        # No graph comes from the cache on disk.
        importlib.import_module("torch._functorch.config").patch(enable_autograd_cache=False),
    )


def _trace(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    notes: Notes,
    options: CaptureOptions,
) -> None:
    """Let Dynamo follow a call on fake tensors, and then its backward pass."""
    shapes: Any = importlib.import_module("torch.fx.experimental.symbolic_shapes")
    dynamo: Any = importlib.import_module("torch._dynamo")
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=shapes.ShapeEnv())
    fakes: dict[int, Tensor] = {}
    compiler = GraphCompiler(notes, options, target=code_of(function))
    compiler.fakes = fakes
    compiler.positions = {id(function): TARGET, id(getattr(function, "__self__", function)): OWNER}
    function, parallel = _prepared(function)
    with ExitStack() as stack:
        for context in (parallel, *_surroundings(notes, compiler, options.originals)):
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
        sizes._CODE_STATE = collections.defaultdict(sizes.CodeState, notes.trace.code_state or {})
        stack.enter_context(mode)
        reads = ReadsBetweenGraphs(compiler.number_read, mode, fakes, notes.fails, compiler.ran_between)
        stack.enter_context(answered(reads))
        numbers: Any = private(_SPECIALIZED)
        numbers.force_specializations = set(notes.trace.specialized)
        compiled = dynamo.optimize(compiler.compile, dynamic=options.dynamic)(function)
        try:
            results = compiled(*fake_args, **fake_kwargs)
        finally:
            notes.conditions = reads.conditions
            notes.trace.code_state = dict(sizes._CODE_STATE)
            notes.trace.specialized = frozenset(numbers.force_specializations)
        outputs = [tensor for tensor in _tensors_in(results) if tensor.requires_grad]
        leaves = [tensor for tensor in fakes.values() if tensor.requires_grad]
        has_run_backward = bool(notes.backward)  # the code itself
        if outputs and leaves and not has_run_backward and options.lowers and options.code_by != "other":
            with compiler.paused():
                gradients = [torch.ones_like(tensor) for tensor in outputs]
            torch.autograd.grad(outputs, leaves, gradients, allow_unused=True)


def _tensors_in(results: Any) -> Iterator[Tensor]:
    """The tensors of a function's results, which may be objects with attributes, such as a data class."""
    for leaf in pytree.tree_leaves(results):
        if isinstance(leaf, Tensor):
            yield leaf
        elif is_dataclass(leaf) and not isinstance(leaf, type):
            yield from _tensors_in([getattr(leaf, attribute.name, None) for attribute in fields(leaf)])
        elif not isinstance(leaf, nn.Module) and not str(type(leaf).__module__).startswith(OF_NO_PROGRAM):
            yield from (value for value in getattr(leaf, "__dict__", {}).values() if isinstance(value, Tensor))
