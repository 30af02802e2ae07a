"""Code that a program compiles by `torch.compile`: where it begins and ends, and which syncs compiling takes away.

The program runs as it is written, on the virtual device. Operators in compiled code are marked, and so are the autograd
nodes that they create, so that their backward pass counts as compiled, too.

Inductor folds small constants into kernels, and creates tensors of the CPU on the GPU instead, so the copies of them
are gone. An operation that breaks the graph (`.item()`, a size that depends on data) syncs as in uncompiled code.
"""

import dis
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial, reduce, wraps
from types import CodeType, FrameType, MethodType
from typing import Any, Final, cast

import torch
from torch import Tensor, nn

from steptrace.documents.compiled import CompiledCode, GraphBreak
from steptrace.documents.estimate import COMPILED
from steptrace.engine.frames import TORCH, trace_file_name
from steptrace.estimate.driver import DriverFacts
from steptrace.inductor.lower import GpuFacts
from steptrace.predict import captured
from steptrace.predict.backend import Replacements, machine
from steptrace.predict.guards import Call, CompiledKinds, code_of
from steptrace.predict.memory import Marks, allocator
from steptrace.predict.operators import Overload, tensors_of
from steptrace.predict.places import running_frame, running_line
from steptrace.predict.sharded import sharded_units
from steptrace.predict.syncs import Syncs
from steptrace.predict.tensor import is_virtual
from steptrace.torch_names import private

pytree: Any = private("torch.utils._pytree")
#: Why the syncs of a call of compiled code are not known for sure.
NOTE: Final = "a compiled {} runs uncompiled here; compiled code may wait in fewer places, or more"
#: The backend that fuses.
_INDUCTOR: Final = "inductor"
#: Kinds of arguments that Dynamo compiles the same code for by default, before it gives up.
_MOST_KINDS: Final = 8
#: Sizes of the same kinds of arguments that kernels are found for; that takes seconds for each.
_MOST_SIZES: Final = 3
#: Where PyTorch defines operators that take functions. Some compile themselves, by a backend that fuses nothing.
_OPERATORS_OF_FUNCTIONS: Final = "torch._higher_order_ops"
#: What is taken over from code of another size whose kernels were found.
_KERNELS: Final = ("kernels", "unlowered", "reason", "kept_bytes")
#: PyTorch's error of a graph break where the program asks for one graph.
UNSUPPORTED: Final = "torch._dynamo.exc.Unsupported"
#: PyTorch's backend that launches the operators of a graph as a CUDA graph, and fuses nothing.
_CUDA_GRAPHS: Final = "cudagraphs"
#: Where Inductor's functions are defined, which a program can name as its backend.
_OF_INDUCTOR: Final = ("torch._inductor", "torch._dynamo.backends.inductor")
#: A backend that stands for Inductor where arguments are checked.
_CHECKED: Final = "eager"
#: What `torch._dynamo.optimize` returns if nothing is to be compiled.
_NOTHING: Final = "torch._dynamo.eval_frame._NullDecorator"
#: The method that modules are called by.
_CALL_OF_MODULES: Final = "_call_impl"
#: Stances (`torch.compiler.set_stance`): nothing is compiled, or nothing again, or not at the first call.
_EAGER, _EAGER_AGAIN, _FAILS_AGAIN = "force_eager", "eager_on_recompile", "fail_on_recompile"
_LATER: Final = ("eager_then_compile", "aot_eager_then_compile")
#: A constant of at most so many values, in one dimension, is written into the kernel that reads it.
_INLINED: Final = 8
#: Operators that create a tensor without reading another one: Inductor creates it on the GPU.
_CONSTRUCTORS: Final = frozenset(
    f"aten::{name}"
    for name in (
        "arange", "empty", "empty_strided", "eye", "full", "full_like", "linspace", "logspace", "ones", "ones_like",
        "scalar_tensor", "tril_indices", "triu_indices", "zeros", "zeros_like",
    )
)  # fmt: skip
#: `torch.tensor` and the like make a tensor of their values by this operator, and copy it by one of those below.
_LITERAL: Final = "aten::lift_fresh"
_COPIED: Final = frozenset(("aten::_to_copy", "aten::copy_"))
#: A single value given as a tensor is an operand of the kernel, wherever it lies.
_SCALAR_OPERANDS: Final = frozenset(("aten::where", "aten::masked_fill", "aten::masked_fill_"))
_INDEXED: Final = frozenset(("aten::index", "aten::_unsafe_index"))
_ASSIGNED: Final = frozenset(("aten::index_put", "aten::index_put_", "aten::_index_put_impl_"))

#: Reads a value on the host.
_READ: Final = "aten::_local_scalar_dense"
#: Instructions that jump over what an `assert` statement raises, by version of Python, and those without effect.
_JUMPS: Final = (["POP_JUMP_IF_TRUE"], ["POP_JUMP_FORWARD_IF_TRUE"])
_NO_WORK: Final = ("CACHE", "EXTENDED_ARG", "NOP", "NOT_TAKEN", "RESUME")
#: Whether an instruction belongs to an `assert` statement, by code object and instruction, with the object kept alive.
_asserted: Final[dict[tuple[int, int], tuple[bool, CodeType]]] = {}
#: Tensors on the CPU that compiled code has made of constants alone.
_made: Final = Marks()
_literals: Final = Marks()


@dataclass(frozen=True, eq=False)
class Region:
    """One call of a compiled module or function.

    Attributes:
        fuses: whether its backend is Inductor.
        serial: number of the call.
        code: its index in `Syncs.codes`; None if compiled code is not followed.
        by_program: whether the program compiles it, and not this prediction alone.
    """

    fuses: bool
    serial: int = 0
    code: int | None = None
    by_program: bool = True


@dataclass(frozen=True, kw_only=True)
class Compiler:
    """What the program asks of `torch.compile`.

    Attributes:
        backend: what makes code of graphs; "other" runs their operators one by one.
        name: of a backend that is neither Inductor nor PyTorch's CUDA graphs.
        settings: Inductor's, by name. A mode is a set of them.
        dynamic: the argument `dynamic`.
        fullgraph: the argument `fullgraph`.
        limit: the argument `recompile_limit`.
    """

    backend: captured.Backend = "inductor"
    name: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    dynamic: bool | None = None
    fullgraph: bool = False
    limit: int | None = None

    @classmethod
    def from_arguments(cls, backend: Any, options: Mapping[str, Any]) -> "Compiler":
        """By the arguments of `torch._dynamo.optimize`, whose backend is a name, or a function with its settings."""
        function = getattr(backend, "compiler_fn", backend)
        name = backend if isinstance(backend, str) else getattr(backend, "compiler_name", None)
        is_inductor = name == _INDUCTOR or str(getattr(function, "__module__", "")).startswith(_OF_INDUCTOR)
        kind: captured.Backend = "inductor" if is_inductor else "cudagraphs" if name == _CUDA_GRAPHS else "other"
        return cls(
            backend=kind,
            name=str(name or getattr(function, "__name__", function)) if kind == "other" else None,
            settings=dict(getattr(backend, "config", None) or {}) if is_inductor else {},
            dynamic=options.get("dynamic"),
            fullgraph=bool(options.get("nopython")),
            limit=options.get("recompile_limit"),
        )

    @property
    def uses_cuda_graphs(self) -> bool:
        """Whether the kernels of a call are launched at once."""
        return self.backend == "cudagraphs" or bool(self._setting("triton.cudagraphs"))

    @property
    def tunes(self) -> bool:
        """Whether Inductor tries several kernels for each product, and takes the quickest."""
        return bool(self._setting("max_autotune") or self._setting("max_autotune_gemm"))

    def _setting(self, name: str) -> Any:
        """A setting of this compiler, or else that of the process."""
        if self.backend != "inductor" or name in self.settings:
            return self.settings.get(name)
        config: Any = importlib.import_module("torch._inductor.config")
        return reduce(lambda owner, part: getattr(owner, part, None), name.split("."), config)

    @property
    def key(self) -> tuple[object, ...]:
        """Code that is compiled with equal keys is shared."""
        return self.backend, self.name, str(sorted(self.settings.items(), key=str)), self.dynamic


def gpu_facts(driver: DriverFacts) -> GpuFacts:
    """The properties of a GPU that Inductor needs."""
    return GpuFacts(
        name=driver.name,
        major=driver.capability[0],
        minor=driver.capability[1],
        multi_processor_count=driver.sms,
        total_memory=driver.memory_bytes,
        max_threads_per_multi_processor=driver.threads,
        shared_memory_per_block_optin=driver.shared_bytes,
        L2_cache_size=driver.l2_bytes,
    )


def replacements(recorder: Syncs) -> Replacements:
    """The functions that replace PyTorch's while a prediction is active, by owner and name."""
    of_modules: Replacements = {}
    if recorder.compiles_modules:
        of_modules[nn.Module, "__call__"] = _as_if_compiled(recorder, nn.Module.__call__)
    dynamo = importlib.import_module("torch._dynamo")  # which every optimizer imports
    # Dynamo keeps the functions of PyTorch that it knows, as they are at its first use. That use must come before they
    # are replaced. Later, it could follow neither this prediction's compiled code nor anything compiled after it.
    learn_functions = private("torch._dynamo.variables.torch.TorchInGraphFunctionVariable._get_handlers")
    if learn_functions is not None:
        learn_functions()
    return {
        (dynamo, "optimize"): _following(recorder, dynamo.optimize),
        (torch.compiler, "disable"): _disabling(recorder, torch.compiler.disable),
        (dynamo, "disable"): _disabling(recorder, dynamo.disable),
        **{
            (torch.compiler, name): _is_compiling(recorder, getattr(torch.compiler, name))
            for name in ("is_compiling", "is_dynamo_compiling")
        },
        (dynamo, "is_compiling"): _is_compiling(recorder, dynamo.is_compiling),
        **of_modules,
    }


def release() -> None:
    """Forget the tensors of the program."""
    _made.clear()
    _literals.clear()


def _following(recorder: Syncs, optimize: Callable[..., Any]) -> Callable[..., Any]:
    """`torch._dynamo.optimize`, to which `torch.compile` leaves its work once it has checked its arguments."""

    @wraps(optimize)
    def following(backend: Any = _INDUCTOR, **options: Any) -> Callable[[Any], Any]:
        """Wraps a module or function that runs as it is, and is noted at each call."""
        compiler = Compiler.from_arguments(backend, options)
        # PyTorch refuses what it would refuse in the program. Inductor itself is not asked: its import takes seconds.
        asked = _CHECKED if compiler.backend == "inductor" else backend
        is_off = isinstance(optimize(asked, **options), private(_NOTHING) or ())

        def compile(model: Any) -> Any:
            of_pytorch = str(getattr(model, "__module__", "")).startswith(_OPERATORS_OF_FUNCTIONS)
            if is_off or of_pytorch:
                return model
            optimized = private("torch._dynamo.eval_frame.OptimizedModule")
            if isinstance(model, optimized or ()):  # which is compiled once
                model = model._orig_mod
            if isinstance(model, nn.Module):
                context = _Context(recorder, compiler, model)
                if optimized is None:
                    model.forward = context(model.forward)
                    return model
                return optimized(model, context)
            if isinstance(model, type):
                method = _CALL_OF_MODULES if issubclass(model, nn.Module) else "__call__"
                setattr(model, method, _of_instances(recorder, compiler, getattr(model, method)))
                return model
            if not callable(model):
                raise AssertionError(f"A callable function is expected, but {type(model)} is provided.")
            return _Context(recorder, compiler, None)(model)

        return compile

    return following


def _of_instances(recorder: Syncs, compiler: "Compiler", method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of a class that is compiled: each instance has its own code."""
    contexts: dict[int, Callable[..., Any]] = {}

    @wraps(method)
    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        if id(self) not in contexts:
            contexts[id(self)] = _Context(recorder, compiler, None)(MethodType(method, self))
        return contexts[id(self)](*args, **kwargs)

    return called


def _is_compiling(recorder: Syncs, asked: Callable[[], bool]) -> Callable[[], bool]:
    """`torch.compiler.is_compiling` and its like, which programs ask to leave out checks that read a value.

    The answer is yes in code that the program compiles. PyTorch itself gets its own answer: its code runs uncompiled.
    """

    @wraps(asked)
    def is_compiling() -> bool:
        region = recorder.region
        compiles = isinstance(region, Region) and region.by_program
        return (compiles and not sys._getframe(1).f_code.co_filename.startswith(TORCH)) or asked()

    return is_compiling


def _disabling(recorder: Syncs, disable: Callable[..., Any]) -> Callable[..., Any]:
    """`torch.compiler.disable`: a marked function does not belong to the compiled code that calls it."""

    @wraps(disable)
    def disabled(fn: Any = None, recursive: bool = True, **options: Any) -> Any:  # noqa: FBT001, FBT002 - as PyTorch's
        if fn is None:
            return _Disabled(disable(None, recursive, **options), lambda fn: disabled(fn, recursive, **options))
        # Without `recursive` the functions that it calls are compiled, and they hold most of the work. A wrapper around
        # one of PyTorch's own functions would stay after the prediction.
        if not recursive or str(getattr(fn, "__module__", "")).partition(".")[0] == "torch":
            return disable(fn, recursive, **options)
        if isinstance(fn, nn.Module):
            fn.forward = _uncompiled(recorder, fn.forward)
        elif not isinstance(fn, type):
            fn = _uncompiled(recorder, fn)
        return disable(fn, recursive, **options)

    return disabled


class _Disabled:
    """`torch.compiler.disable()` without a function: a decorator, and a context."""

    def __init__(self, context: Any, decorate: Callable[[Any], Any]) -> None:
        self._context, self._decorate = context, decorate

    def __call__(self, fn: Any) -> Any:
        return self._decorate(fn)

    def __enter__(self) -> Any:
        return self._context.__enter__()

    def __exit__(self, *error: object) -> Any:
        return self._context.__exit__(*error)


def _uncompiled(recorder: Syncs, function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        with _running(recorder, None):
            return function(*args, **kwargs)

    return called


class _Context:
    """Wraps a function so that each call is noted, in the form that `OptimizedModule` expects of a compiler."""

    def __init__(
        self,
        recorder: Syncs,
        compiler: Compiler,
        module: nn.Module | None,
    ) -> None:
        self._recorder = recorder
        self._module = module
        self._fuses = compiler.backend == "inductor"
        self._note = NOTE.format("function" if module is None else "module")
        self._kinds = _Kinds(recorder, compiler)
        #: Whether a first call has run uncompiled, as a stance of the program may ask.
        self._was_called = False

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        recorder = self._recorder

        @wraps(function)
        def uncompiled(*args: Any, **kwargs: Any) -> Any:
            if recorder.region is not None:  # compiled with the code that calls it
                return function(*args, **kwargs)
            target = function if self._module is None else self._module
            if self._runs_uncompiled(target, args, kwargs):
                return function(*args, **kwargs)
            recorder.cannot_judge(COMPILED, self._note)
            follows = recorder.follows_compiled
            module = target if isinstance(target, nn.Module) else getattr(target, "__self__", None)
            units = sharded_units(module) if isinstance(module, nn.Module) else ()
            if units:
                return self._in_units(units, function, args, kwargs)
            code = self._kinds.place_of(target, args, kwargs) if follows else None
            return _run(recorder, Region(self._fuses, recorder.next_call(), code), function, args, kwargs)

        return uncompiled

    def _runs_uncompiled(self, target: Any, args: Any, kwargs: Any) -> bool:
        """Whether the program's stance keeps this call from being compiled (`torch.compiler.set_stance`).

        Raises:
            RuntimeError: the stance forbids to compile again, and this call would.
        """
        recorder = self._recorder
        stance = getattr(recorder.stance, "stance", None)
        was_called, self._was_called = self._was_called, True
        if stance == _EAGER or (stance in _LATER and not was_called):
            return True
        if stance not in (_EAGER_AGAIN, _FAILS_AGAIN) or not recorder.follows_compiled:
            return False
        if self._kinds.has(target, args, kwargs):
            return False
        if stance == _FAILS_AGAIN:
            raise RuntimeError(f"Detected recompile when torch.compile stance is '{stance}'")
        return True

    def _in_units(self, units: Sequence[nn.Module], function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call a function that runs the compiled code of each of these modules, between the hooks of FSDP."""
        with ExitStack() as stack:
            for unit in units:
                before = unit.__dict__.get("forward")
                unit.forward = self._of_unit(unit, unit.forward)
                stack.callback(_put_back, unit, before)
            return function(*args, **kwargs)

    def _of_unit(self, unit: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
        recorder = self._recorder

        @wraps(forward)
        def uncompiled(*args: Any, **kwargs: Any) -> Any:
            if recorder.region is not None:
                return forward(*args, **kwargs)
            code = None
            if recorder.follows_compiled:
                compiled_forward, unit.forward = unit.forward, forward  # what is followed is the program's own
                try:
                    code = self._kinds.place_of(unit, args, kwargs)
                finally:
                    unit.forward = compiled_forward
            return _run(recorder, Region(self._fuses, recorder.next_call(), code), forward, args, kwargs)

        return uncompiled

    def __deepcopy__(self, _: object) -> "_Context":
        return self


def _put_back(module: nn.Module, forward: Callable[..., Any] | None) -> None:
    """Give a module its earlier `forward` again; None: the `forward` of its class."""
    if forward is None:
        del module.forward
    else:
        module.forward = forward


class _Kinds:
    """The calls of one piece of code for which Dynamo compiles it, with the kernels of each.

    Dynamo makes a size dynamic at its second value, unless the program forbids it, and later sizes then have the same
    graphs. Their kernels are found for the first few sizes of a kind of arguments. A later size gets those of the
    nearest one.
    """

    def __init__(self, recorder: Syncs, compiler: Compiler) -> None:
        self._recorder, self._compiler = recorder, compiler

    def place_of(self, target: Any, args: Any, kwargs: Any) -> int:
        """The index in `Syncs.codes` of the code for these arguments; arguments of a new kind are followed first.

        Raises:
            Unsupported: PyTorch's own error where the graph breaks although the program asks for one graph.
        """
        recorder, kinds, call = self._recorder, self._guarded(target), (target, args, kwargs)
        with recorder.paused():
            key, alike, elements = _signature(*call)
            kind = key if self._compiler.dynamic is False else alike
            followed = kinds.fitting(call, kind)
        if self._compiler.fullgraph and key in kinds.refused:
            raise _unsupported(*kinds.refused[key])
        if followed is not None and key in followed.places:
            return followed.places[key]
        lowered = kinds.lowered.setdefault(alike, {})
        lowers = len(lowered) < _MOST_SIZES
        nearest = None if lowers else lowered[min(lowered, key=lambda size: abs(size - elements))]
        if followed is not None and nearest is not None:
            followed.places[key] = nearest
            return nearest
        if followed is None and kinds.compilations >= self._most():
            if kinds.limited is None:
                kinds.limited = self._add(captured.unlowered("kinds"))
            return kinds.limited
        trace = captured.Trace(code_state=recorder.code_state)
        code = self._followed(call, trace, kinds, lowers=lowers)
        if nearest is not None:
            code = replace(code, **{name: getattr(recorder.codes[nearest], name) for name in _KERNELS})
        if followed is None:
            with recorder.paused():
                followed = kinds.add(call, kind, trace.frames, trace.compiled)
        if trace.frames and not trace.compiled:
            code = replace(code, graphs=0, breaks=(), shares_graphs=True)
        recorder.code_state = trace.code_state or recorder.code_state
        followed.places[key] = place = self._add(code)
        lowered.setdefault(elements, place)
        if kinds.first is None:
            kinds.first = place
        first = recorder.codes[kinds.first]
        recorder.codes[kinds.first] = replace(first, recompilations=tuple(kinds.recompilations.values()))
        if self._compiler.fullgraph and recorder.codes[place].breaks:
            kinds.refused[key] = trace.error, recorder.codes[place].breaks[0]
            raise _unsupported(*kinds.refused[key])
        return place

    def has(self, target: Any, args: Any, kwargs: Any) -> bool:
        """Whether there is compiled code for a call with these arguments."""
        with self._recorder.paused():
            key, alike, _ = _signature(target, args, kwargs)
            kind = key if self._compiler.dynamic is False else alike
            return self._guarded(target).fitting((target, args, kwargs), kind) is not None

    def _guarded(self, target: Any) -> CompiledKinds:
        key = (*self._compiler.key, code_of(target))
        return self._recorder.guarded_code.setdefault(key, CompiledKinds.of_target(target))

    def _most(self) -> int:
        """The limit of kinds of arguments."""
        return _most_kinds() if self._compiler.limit is None else self._compiler.limit

    def _followed(self, call: Call, trace: captured.Trace, kinds: CompiledKinds, *, lowers: bool) -> CompiledCode:
        """The code for a call's arguments; `trace` is filled."""
        recorder, compiler, (target, args, kwargs) = self._recorder, self._compiler, call
        with recorder.paused():
            flex = _flex_attention(target, args, kwargs) if compiler.backend == "inductor" else None
            return flex or captured.capture(
                target,
                args,
                kwargs,
                facts=gpu_facts(machine.driver),
                dynamic=compiler.dynamic,
                originals=recorder.originals,
                trace=trace,
                known=kinds.frames,
                lowers=lowers,
                code_by=compiler.backend,
                settings=compiler.settings,
            )

    def _add(self, code: CompiledCode) -> int:
        """Keep code that is compiled for the running call, and return its index in `Syncs.codes`."""
        recorder, compiler = self._recorder, self._compiler
        site = running_line()
        file = None if site is None else trace_file_name(site.file)
        line = None if site is None else site.line
        # A graph that breaks before any frame of the program breaks at the call.
        breaks = (replace(found, file=file, line=line) if found.file is None else found for found in code.breaks)
        recorder.codes.append(
            replace(
                code,
                breaks=tuple(breaks),
                reason=compiler.name if code.unlowered == "backend" else code.reason,
                cuda_graphs=compiler.uses_cuda_graphs,
                tunes=compiler.tunes,
                file=file,
                line=line,
                fullgraph=compiler.fullgraph,
            )
        )
        return len(recorder.codes) - 1


def _unsupported(message: str | None, first: GraphBreak) -> Exception:
    """PyTorch's error of a graph break in code that is compiled with `fullgraph=True`, with the line."""
    error: Any = private(UNSUPPORTED) or RuntimeError
    code = "" if first.code is None else f"\n    {first.code}"
    place = f'\n\nfrom user code:\n   File "{first.file}", line {first.line}{code}\n'
    return cast("Exception", error(f"{message or first.kind}{place}"))


def _most_kinds() -> int:
    """The limit of kinds of arguments, which a program may set itself, as optimizers that compile their updates do."""
    config: Any = importlib.import_module("torch._dynamo.config")
    return int(getattr(config, "recompile_limit", _MOST_KINDS))


def _flex_attention(target: Any, args: Any, kwargs: Any) -> CompiledCode | None:
    """The kernels of `flex_attention` if it is compiled alone; None for other code."""
    if getattr(target, "__qualname__", "") != "flex_attention" or len(args) < 3:
        return None
    if not all(isinstance(tensor, Tensor) and tensor.dim() == 4 for tensor in args[:3]):
        return None
    share = captured.mask_share_of((*args, *kwargs.values()))
    return captured.flex_attention(args[0], args[1], args[2], share)


def _as_if_compiled(recorder: Syncs, call: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `nn.Module.__call__`: the outermost modules with parameters are followed as if the program compiled them."""
    kinds = _Kinds(recorder, Compiler())

    @wraps(call)
    def called(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if recorder.region is not None or not _is_compilable(self) or not _on_device((*args, *kwargs.values())):
            return call(self, *args, **kwargs)
        code = kinds.place_of(self, args, kwargs)
        # The program waits as it does uncompiled.
        return _run(recorder, Region(False, recorder.next_call(), code, False), partial(call, self), args, kwargs)

    return called


def _is_compilable(module: nn.Module) -> bool:
    """Whether a module is one to compile: it has parameters, is not compiled, and does not pass work on to ranks."""
    wrappers = (private("torch._dynamo.eval_frame.OptimizedModule"), nn.parallel.DistributedDataParallel)
    is_wrapper = isinstance(module, tuple(wrapper for wrapper in wrappers if wrapper is not None))
    is_compiled = getattr(module, "_compiled_call_impl", None) is not None
    return not is_wrapper and not is_compiled and next(module.parameters(), None) is not None


def _on_device(values: Sequence[Any]) -> bool:
    return any(isinstance(value, Tensor) and is_virtual(value) for value in pytree.tree_leaves(list(values)))


def _run(
    recorder: Syncs, region: Region, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """Run code that is compiled, or as if it were, and note the memory that it leaves in use."""
    before = allocator().live
    with _running(recorder, region):
        result = function(*args, **kwargs)
    if region.code is not None:
        code = recorder.codes[region.code]
        if code.kept_bytes_uncompiled is None:
            recorder.codes[region.code] = replace(code, kept_bytes_uncompiled=allocator().live - before)
    return result


def _signature(target: Any, args: Any, kwargs: Any) -> tuple[object, object, int]:
    """Two keys, and how many elements the tensors among the arguments have.

    Calls with equal first keys share their compiled code and its kernels; those whose second keys are equal differ in
    sizes alone.
    """
    leaves, structure = pytree.tree_flatten((args, kwargs))
    weights: object = id(target)
    if isinstance(target, nn.Module):  # blocks of one kind are compiled once
        named = (*target.named_parameters(), *target.named_buffers())
        weights = (
            tuple((name, type(module), _described(module)) for name, module in target.named_modules()),
            tuple((name, tensor.shape, tensor.dtype, tensor.requires_grad) for name, tensor in named),
        )
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    kinds = tuple(
        (leaf.dim(), leaf.dtype, leaf.requires_grad, is_virtual(leaf)) if isinstance(leaf, Tensor) else type(leaf)
        for leaf in leaves
    )
    cast = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else None
    alike = weights, kinds, str(structure), torch.is_grad_enabled(), getattr(target, "training", None), cast
    sizes = tuple((leaf.shape, leaf.stride()) for leaf in tensors)
    return (alike, sizes), alike, sum(leaf.numel() for leaf in tensors)


def _described(module: nn.Module) -> str:
    """What a module says of itself, unless that holds values of tensors, as of `nn.EmbeddingBag`."""
    text = module.extra_repr()
    return "" if "tensor(" in text else text


@contextmanager
def _running(recorder: Syncs, region: Region | None) -> Iterator[None]:
    before, recorder.region = recorder.region, region
    try:
        yield
    finally:
        recorder.region = before


def runs_on_host(overload: Overload, args: Sequence[Any], result: Any) -> None:
    """Note tensors that compiled code makes of constants on the CPU."""
    if not isinstance(result, Tensor):
        return
    if overload.name == _LITERAL:
        _literals.add(result)
        return
    sources = tensors_of(args)
    of_constants = all(source in _made for source in sources) if sources else overload.name in _CONSTRUCTORS
    if of_constants or (overload.name in _CONSTRUCTORS and overload.name.endswith("_like")):
        _made.add(result)


def takes_away(overload: Overload, kind: str, args: Sequence[Any]) -> bool:
    """Whether the sync of an operator, a copy of this kind, is gone once Inductor compiles it."""
    if overload.name == _READ:
        return _is_asserted(running_frame())
    if overload.name in _COPIED:
        source = args[0 if overload.copied is None else overload.copied]
        return not is_virtual(source) and _is_constant(source)
    if overload.name in _SCALAR_OPERANDS:
        return True
    if overload.name in _INDEXED:
        return kind == "h2d_copy" and all(
            _is_constant(index) for index in args[1] if index is not None and not is_virtual(index)
        )
    if overload.name in _ASSIGNED:
        indices = [index for index in args[1] if index is not None]
        # If a single value is assigned by a mask, that is a choice between two values.
        return len(indices) == 1 and indices[0].dtype == torch.bool and args[2].numel() == 1
    return False


def _is_asserted(frame: FrameType | None) -> bool:
    """Whether a frame's running instruction asks for the truth of what an `assert` statement is about.

    Dynamo makes an operator of such a check, which fails on the device and makes nobody wait; the message must be a
    constant.
    """
    if frame is None:
        return False
    key = id(frame.f_code), frame.f_lasti
    if key not in _asserted:
        instructions = [
            instruction for instruction in dis.get_instructions(frame.f_code) if instruction.opname not in _NO_WORK
        ]
        place = next(
            (k for k, instruction in enumerate(instructions) if instruction.offset == frame.f_lasti), len(instructions)
        )
        names = [instruction.opname for instruction in instructions[place : place + 5]]
        if names[:1] == ["TO_BOOL"]:
            names = names[1:]
        # The code is kept, so that its identity is not another one's later.
        _asserted[key] = names[:1] in _JUMPS and _raises_constant(names[1:]), frame.f_code
    return _asserted[key][0]


def _raises_constant(names: Sequence[str]) -> bool:
    """Whether instructions raise an AssertionError without a message, or with a constant one."""
    if names[:1] not in (["LOAD_ASSERTION_ERROR"], ["LOAD_COMMON_CONSTANT"]):
        return False
    return names[1:2] == ["RAISE_VARARGS"] or (names[1:2] == ["LOAD_CONST"] and names[2:3] in (["PRECALL"], ["CALL"]))


def _is_constant(tensor: Tensor) -> bool:
    """Whether a tensor on the CPU is made in code to compile, and no copy of it is left there."""
    return tensor in _made or (tensor in _literals and tensor.dim() <= 1 and tensor.numel() <= _INLINED)
