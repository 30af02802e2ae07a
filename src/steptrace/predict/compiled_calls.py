"""The calls of compiled code by kinds of arguments, each with the kernels of its code."""

import importlib
from dataclasses import replace
from typing import Any, Final, cast

import torch
from torch import Tensor, nn

from steptrace.documents.compiled import CompiledCode, GraphBreak
from steptrace.engine.frames import trace_file_name
from steptrace.predict import captured
from steptrace.predict.backend import machine
from steptrace.predict.compiler import Compiler, gpu_facts
from steptrace.predict.dynamo_notes import TracedCall
from steptrace.predict.guards import Call, CompiledKinds, code_of
from steptrace.predict.places import running_line
from steptrace.predict.pytorch import is_uninitialized
from steptrace.predict.syncs import Syncs
from steptrace.predict.tensor import is_virtual
from steptrace.torch_names import private

pytree: Any = private("torch.utils._pytree")
#: Kinds of arguments that Dynamo compiles the same code for by default, before it gives up.
_MOST_KINDS: Final = 8
#: Sizes of the same kinds of arguments that kernels are found for; that takes seconds for each.
_MOST_SIZES: Final = 3
#: What is taken over from code of another size whose kernels were found.
_KERNELS: Final = ("kernels", "unlowered", "reason", "kept_bytes")
#: PyTorch's errors where the program forbids recompilations, and too many of them.
RECOMPILED: Final = "torch._dynamo.exc.RecompileError"
OVER_LIMIT: Final = "torch._dynamo.exc.FailOnRecompileLimitHit"
#: All errors that end a program as PyTorch would end it.
ENDING: Final = (captured.UNSUPPORTED, captured.UNTRACEABLE, RECOMPILED, OVER_LIMIT)


class CompiledCalls:
    """Finds the compiled code of each call of what one compiler compiles; the recorder keeps the code.

    Dynamo makes a size dynamic at its second value, unless the program forbids it, and later sizes then have the same
    graphs. Their kernels are found for the first few sizes of a kind of arguments. A later size gets those of the
    nearest one.
    """

    def __init__(self, recorder: Syncs, compiler: Compiler) -> None:
        self._recorder = recorder
        self._compiler = compiler

    def place_of(self, target: Any, args: Any, kwargs: Any) -> int:
        """The index in `CompilationState.codes` of the code for a call. Arguments of a new kind are followed first.

        Raises:
            Unsupported: PyTorch's own error where the graph breaks although the program asks for one graph.
            TorchRuntimeError: PyTorch's own at an operator of the program that cannot be traced.
            RecompileError: PyTorch's own where it compiles again although the program forbids it.
            FailOnRecompileLimitHit: PyTorch's own at its limit, where code must not run uncompiled.
        """
        state = self._recorder.compilation
        paused = self._recorder.thread.paused
        kinds = self._guarded(target)
        call = (target, args, kwargs)
        if kinds.skipped is not None:
            return kinds.skipped
        with paused():
            key, alike, elements = _signature(*call)
            kind = key if self._compiler.dynamic is False else alike
            followed = kinds.fitting(call, kind)
            asks = followed is not None and kinds.may_differ(followed, call) and kinds.compilations < self._most()
        if self._compiler.fullgraph and key in kinds.refused:
            raise _unsupported(*kinds.refused[key])
        if followed is not None and key in followed.places and not asks:
            return followed.places[key]
        lowered = kinds.lowered.setdefault(alike, [])
        lowers = len(lowered) < _MOST_SIZES
        nearest = None if lowers else min(lowered, key=lambda known: abs(known[0] - elements))[1]
        if followed is not None and nearest is not None and not asks:
            followed.places[key] = nearest
            return nearest
        if followed is None and kinds.compilations >= self._most():
            if self._compiler.fullgraph or _setting("fail_on_recompile_limit_hit", default=False):
                raise _error(OVER_LIMIT, f"{kinds.function} reaches the limit of {self._most()} compilations")
            if kinds.limited is None:
                kinds.limited = self._add(captured.unlowered("kinds"))
            return kinds.limited
        trace = self._new_trace(kinds)
        kinds.passes += 1
        has_kernels = followed is not None and key in followed.places
        code = self._followed(call, trace, kinds, lowers=lowers and not has_kernels)
        if trace.ends is not None:
            self._add(replace(code, graphs=0))  # PyTorch makes no graph
            raise _error(*trace.ends)
        if _setting("error_on_recompile", default=False):
            _raise_if_again(trace)
        state.code_state = trace.code_state or state.code_state
        state.specialized_numbers = trace.specialized
        if followed is not None and not trace.compiled and asks:
            with paused():
                kinds.asked_in_vain(followed, call)
            if has_kernels:
                return followed.places[key]
        if followed is not None and has_kernels:
            nearest = followed.places[key]
        if nearest is not None:
            code = replace(code, **{name: getattr(state.codes[nearest], name) for name in _KERNELS})
        if followed is None or trace.compiled:
            with paused():
                followed = kinds.add(call, kind, trace.frames, trace.compiled)
        if trace.frames and not trace.compiled:
            code = replace(code, graphs=0, breaks=(), shares_graphs=True)
        if self._compiler.fullgraph and code.breaks:
            code = replace(code, graphs=0)  # PyTorch ends with the error, and makes none
        place = self._add(code)
        followed.places[key] = place
        lowered.append((elements, place))
        if state.codes[place].unlowered == "no_operators" and not trace.frames:
            kinds.skipped = place
        if kinds.first is None:
            kinds.first = place
        first = state.codes[kinds.first]
        state.codes[kinds.first] = replace(first, recompilations=tuple(kinds.recompilations.values()))
        if self._compiler.fullgraph and state.codes[place].breaks:
            kinds.refused[key] = trace.error, state.codes[place].breaks[0]
            raise _unsupported(*kinds.refused[key])
        return place

    def note_sizes(self, target: Any, args: Any, kwargs: Any) -> None:
        """Note the sizes and numbers of a call that runs uncompiled, as those that a later call may vary from."""
        kinds = self._guarded(target)
        trace = self._new_trace(kinds)
        self._followed((target, args, kwargs), trace, kinds, lowers=False)
        state = self._recorder.compilation
        state.code_state = trace.code_state or state.code_state

    def has(self, target: Any, args: Any, kwargs: Any) -> bool:
        """Whether there is compiled code for a call with these arguments."""
        with self._recorder.thread.paused():
            key, alike, _ = _signature(target, args, kwargs)
            kind = key if self._compiler.dynamic is False else alike
            return self._guarded(target).fitting((target, args, kwargs), kind) is not None

    def _guarded(self, target: Any) -> CompiledKinds:
        key = (*self._compiler.key, code_of(target))
        return self._recorder.compilation.guarded_code.setdefault(key, CompiledKinds.of_target(target))

    def _new_trace(self, kinds: CompiledKinds) -> TracedCall:
        """Where Dynamo begins with the next call that it follows."""
        state = self._recorder.compilation
        return TracedCall(code_state=state.code_state, specialized=state.specialized_numbers, number=kinds.passes)

    def _most(self) -> int:
        """The limit of kinds of arguments."""
        return _most_kinds() if self._compiler.limit is None else self._compiler.limit

    def _followed(self, call: Call, trace: TracedCall, kinds: CompiledKinds, *, lowers: bool) -> CompiledCode:
        """The code for a call's arguments; `trace` is filled."""
        recorder = self._recorder
        compiler = self._compiler
        target, args, kwargs = call
        with recorder.thread.paused():
            flex = _flex_attention(target, args, kwargs) if compiler.backend == "inductor" else None
            return flex or captured.capture(
                target,
                args,
                kwargs,
                facts=gpu_facts(machine.driver),
                dynamic=compiler.dynamic,
                originals=recorder.compilation.originals,
                trace=trace,
                known=kinds.frames,
                lowers=lowers,
                code_by=compiler.backend,
                settings=compiler.settings,
            )

    def _add(self, code: CompiledCode) -> int:
        """Keep code that is compiled for the running call, and return its index in `CompilationState.codes`."""
        codes = self._recorder.compilation.codes
        compiler = self._compiler
        site = running_line()
        file = None if site is None else trace_file_name(site.file)
        line = None if site is None else site.line
        # A graph that breaks before any frame of the program breaks at the call.
        breaks = (
            replace(graph_break, file=file, line=line) if graph_break.file is None else graph_break
            for graph_break in code.breaks
        )
        codes.append(
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
        return len(codes) - 1


def _error(name: str, message: str) -> Exception:
    """An error of PyTorch's own class with this name."""
    error: Any = private(name) or RuntimeError
    return cast("Exception", error(message))


def _unsupported(message: str | None, first: GraphBreak) -> Exception:
    """PyTorch's error of a graph break in code that is compiled with `fullgraph=True`, with the line."""
    code = "" if first.code is None else f"\n    {first.code}"
    place = f'\n\nfrom user code:\n   File "{first.file}", line {first.line}{code}\n'
    return _error(captured.UNSUPPORTED, f"{message or first.kind}{place}")


def _raise_if_again(trace: TracedCall) -> None:
    """Raise PyTorch's error where a call compiles a function again (`torch._dynamo.config.error_on_recompile`)."""
    for place, failed in sorted(trace.compiled.items()):
        if failed is None:
            continue
        frame = trace.frames[place]
        found = failed.recompiled(function=frame.function, function_file=frame.file, function_line=frame.line)
        values = f": {found.before} before, {found.now} now" if found.before is not None else ""
        raise _error(
            RECOMPILED,
            f"Recompiling function {frame.function} in {frame.file}:{frame.line}\n"
            f"    triggered by the following guard failure(s):\n    - {found.kind} of {found.value}{values}",
        )


def _setting(name: str, default: Any) -> Any:
    """A setting of Dynamo, as the program has it now."""
    return getattr(importlib.import_module("torch._dynamo.config"), name, default)


def _most_kinds() -> int:
    """The limit of kinds of arguments, which a program may set itself, as optimizers that compile their updates do."""
    return int(_setting("recompile_limit", _MOST_KINDS))


def _flex_attention(target: Any, args: Any, kwargs: Any) -> CompiledCode | None:
    """The kernels of `flex_attention` if it is compiled alone; None for other code."""
    if getattr(target, "__qualname__", "") != "flex_attention" or len(args) < 3:
        return None
    if not all(isinstance(tensor, Tensor) and tensor.dim() == 4 for tensor in args[:3]):
        return None
    share = captured.mask_share_of((*args, *kwargs.values()))
    return captured.flex_attention(args[0], args[1], args[2], share)


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
            tuple((name, _shape(tensor), tensor.dtype, tensor.requires_grad) for name, tensor in named),
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


def _shape(weight: Tensor) -> torch.Size | None:
    """The shape of a weight; None before a lazy module has its first input."""
    return None if is_uninitialized(weight) else weight.shape


def _described(module: nn.Module) -> str:
    """A module's own description; empty if that has values of tensors in it, as of `nn.EmbeddingBag`."""
    text = module.extra_repr()
    return "" if "tensor(" in text else text
