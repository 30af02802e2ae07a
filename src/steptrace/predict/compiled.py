"""Code that a program compiles by `torch.compile`: where it begins and ends.

The program runs as it is written, on the virtual device. Operators in compiled code are marked, and so are the autograd
nodes that they create, so that their backward pass counts as compiled, too.
"""

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial, wraps
from types import MethodType
from typing import Any, Final

import torch
from torch import Tensor, nn

from steptrace.documents.estimate import COMPILED
from steptrace.engine.frames import TORCH
from steptrace.predict.backend import Replacements
from steptrace.predict.compiled_calls import CompiledCalls
from steptrace.predict.compiler import INDUCTOR, Compiler, Region
from steptrace.predict.memory import allocator
from steptrace.predict.sharded import sharded_units
from steptrace.predict.syncs import Syncs
from steptrace.predict.tensor import is_virtual
from steptrace.torch_names import private

pytree: Any = private("torch.utils._pytree")
#: Why the syncs of a call of compiled code are not known for sure.
NOTE: Final = "a compiled {} runs uncompiled here; compiled code may wait in fewer places, or more"
#: Where PyTorch defines operators that take functions. Some compile themselves, by a backend that fuses nothing.
_OPERATORS_OF_FUNCTIONS: Final = "torch._higher_order_ops"
#: A backend that stands for Inductor where arguments are checked.
_CHECKED: Final = "eager"
#: What `torch._dynamo.optimize` returns if nothing is to be compiled.
_NOTHING: Final = "torch._dynamo.eval_frame._NullDecorator"
#: PyTorch's words where a program compiles a scripted module.
_SCRIPTED: Final = "torch.compile does not support compiling torch.jit.script or torch.jit.freeze models directly."
#: The method that runs when a module is called.
_CALL_OF_MODULES: Final = "_call_impl"
#: Stances (`torch.compiler.set_stance`): nothing is compiled, or nothing again, or not at the first call.
_EAGER: Final = "force_eager"
_EAGER_AGAIN: Final = "eager_on_recompile"
_FAILS_AGAIN: Final = "fail_on_recompile"
_LATER: Final = ("eager_then_compile", "aot_eager_then_compile")


def replacements(recorder: Syncs) -> Replacements:
    """The functions that replace PyTorch's while a prediction is active, by owner and name."""
    of_modules: Replacements = {}
    if recorder.compilation.compiles_modules:
        of_modules[nn.Module, "__call__"] = _as_if_compiled(recorder, nn.Module.__call__)
    dynamo = importlib.import_module("torch._dynamo")  # every optimizer imports it
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
        (dynamo, "reset"): _resetting(recorder, dynamo.reset),
        **of_modules,
    }


def _following(recorder: Syncs, optimize: Callable[..., Any]) -> Callable[..., Any]:
    """`torch._dynamo.optimize`, to which `torch.compile` leaves its work once it has checked its arguments."""

    @wraps(optimize)
    def following(backend: Any = INDUCTOR, **options: Any) -> Callable[[Any], Any]:
        """Wraps a module or function. It runs as it is, and each call is noted."""
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
            if isinstance(model, torch.jit.ScriptModule):
                raise RuntimeError(_SCRIPTED)
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
        region = recorder.thread.region
        compiles = isinstance(region, Region) and region.by_program
        return (compiles and not sys._getframe(1).f_code.co_filename.startswith(TORCH)) or asked()

    return is_compiling


def _resetting(recorder: Syncs, reset: Callable[[], None]) -> Callable[[], None]:
    """`torch._dynamo.reset`, to which `torch.compiler.reset` leaves its work: all compiled code is forgotten."""

    @wraps(reset)
    def resetting() -> None:
        reset()
        recorder.compilation.forget()

    return resetting


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
        self._context = context
        self._decorate = decorate

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
        self._kinds = CompiledCalls(recorder, compiler)
        #: Whether a first call has run uncompiled, as a stance of the program may ask.
        self._was_called = False

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        recorder = self._recorder

        @wraps(function)
        def uncompiled(*args: Any, **kwargs: Any) -> Any:
            if recorder.thread.region is not None:  # compiled with the code that calls it
                return function(*args, **kwargs)
            target = function if self._module is None else self._module
            if self._runs_uncompiled(target, args, kwargs):
                return function(*args, **kwargs)
            recorder.cannot_judge(COMPILED, self._note)
            follows = recorder.compilation.is_followed
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
        stance = getattr(recorder.compilation.stance, "stance", None)
        was_called = self._was_called
        self._was_called = True
        if stance == _EAGER:
            return True
        if stance in _LATER and not was_called:
            if recorder.compilation.is_followed:
                self._kinds.note_sizes(target, args, kwargs)
            return True
        if stance not in (_EAGER_AGAIN, _FAILS_AGAIN) or not recorder.compilation.is_followed:
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
            if recorder.thread.region is not None:
                return forward(*args, **kwargs)
            code = None
            if recorder.compilation.is_followed:
                compiled_forward = unit.forward
                unit.forward = forward  # the program's own forward is followed
                try:
                    code = self._kinds.place_of(unit, args, kwargs)
                finally:
                    unit.forward = compiled_forward
            return _run(recorder, Region(self._fuses, recorder.next_call(), code), forward, args, kwargs)

        return uncompiled

    def __deepcopy__(self, _: object) -> "_Context":
        return self


def _put_back(module: nn.Module, forward: Callable[..., Any] | None) -> None:
    """Give a module its earlier `forward` again; None stands for the `forward` of its class."""
    if forward is None:
        del module.forward
    else:
        module.forward = forward


def _as_if_compiled(recorder: Syncs, call: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `nn.Module.__call__`: the outermost modules with parameters are followed as if the program compiled them."""
    kinds = CompiledCalls(recorder, Compiler())

    @wraps(call)
    def called(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if recorder.thread.region is not None or not _is_compilable(self) or not _on_device((*args, *kwargs.values())):
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
        code = recorder.compilation.codes[region.code]
        if code.kept_bytes_uncompiled is None:
            recorder.compilation.codes[region.code] = replace(code, kept_bytes_uncompiled=allocator().live - before)
    return result


@contextmanager
def _running(recorder: Syncs, region: Region | None) -> Iterator[None]:
    before = recorder.thread.region
    recorder.thread.region = region
    try:
        yield
    finally:
        recorder.thread.region = before
