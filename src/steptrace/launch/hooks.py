"""Wraps PyTorch's optimizers, backward passes, gradient scalers and loaders so that they report to a `StepFinder`.

The program calls these functions instead of PyTorch's, so they are short, and none syncs with a device.
"""

import ctypes
import functools
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch.utils.data import dataloader

from steptrace.engine.steps import StepFinder
from steptrace.torch_names import private

Wrapped = Callable[..., Any]
_TRANSLATOR: Final = "torch._dynamo.symbolic_convert.InstructionTranslator.current_tx"
_NOTHING = nullcontext()
#: PyTorch's own: a prediction replaces the attribute, so that it is true in compiled code, which runs as written there.
_traced_by_dynamo = torch.compiler.is_dynamo_compiling


class _Loading(threading.local):
    """The state of this thread's loaders: whether one is loading a batch, and how many samples the batch has."""

    inside = False
    size: int | None = None


@dataclass
class _Captured:
    """What a program has captured in a CUDA graph: the number of backward passes, and the optimizers that stepped."""

    backwards: int = 0
    optimizers: list[Any] = field(default_factory=list)


class Hooks:
    """Reports the program's calls to `finder`. While `labels` is on, the parts of a step get labels as in our own loop.

    The labels are `data`, `backward` and `optimizer`. A closure that is passed to the optimizer's step is outside of
    `optimizer`.
    """

    def __init__(self, finder: StepFinder) -> None:
        self.finder = finder
        self.labels = False
        #: Opens a context around each part of a step, in place of a label.
        self.look: Callable[[str], AbstractContextManager[Any]] | None = None
        #: Called with an optimizer before it uses its gradients.
        self.before_update: Callable[[Any], None] | None = None
        #: Opens a context while a closure of the program runs inside an optimizer's step.
        self.in_closure: Callable[[], AbstractContextManager[Any]] | None = None
        #: Called with each error that is raised in our code. It keeps our own errors from the program, and raises the
        #: program's again. None: all errors reach the program.
        self.contain: Callable[[BaseException], None] | None = None
        #: Whether reporting has ended, after an error of ours or because the program reports its steps itself. Then
        #: PyTorch's functions are only called.
        self.off = False
        self._loading = _Loading()
        #: What a CUDA graph has captured so far; None while none captures.
        self._captured: _Captured | None = None
        #: Whether the graph that Dynamo traces may end where it meets our functions. Called in traced code only.
        self._graph_may_end: Callable[[], bool] = lambda: False
        #: Lets the graph that Dynamo traces report an optimizer's step at each call. Called in traced code only.
        self._report_from_graph: Callable[[Any], None] = lambda _: None

    def tell(self, report: Callable[..., Any], *args: Any) -> Any:
        """Call a function of ours and return its result; None if the hooks are off, or if an error was contained."""
        if self.off:
            return None
        if self.contain is None:
            return report(*args)
        try:
            return report(*args)
        except BaseException as error:
            self.off = True
            self.contain(error)
            return None

    def keep_from_dynamo(self) -> None:
        """Let Dynamo leave our functions alone: a program may compile its optimizer's step, or all of its step.

        A graph of its code then ends where one of ours is called. PyTorch's optimizers and backward passes end it, too.
        With `fullgraph=True` no graph may end. Then the compiled graph reports its optimizers' steps when it returns.
        Importing Dynamo takes seconds, so this is called once the program has imported it.
        """
        self.tell = torch.compiler.disable(self.tell)  # type: ignore[method-assign, no-untyped-call]
        # Dynamo calls these functions while it traces, and takes their results for constants.
        self._graph_may_end = torch.compiler.assume_constant_result(_graph_may_end)  # type: ignore[no-untyped-call]
        self._report_from_graph = torch.compiler.assume_constant_result(  # type: ignore[no-untyped-call]
            lambda address: self._reported_by_graph(address)  # a bound method cannot be marked
        )

    def _reported_by_graph(self, address: int) -> None:
        """Let the graph that Dynamo traces in this thread report a step of an optimizer each time it was called.

        `address`: the optimizer's `id`. PyTorch 2.11 passes only constants to a function called while it traces.
        """
        optimizer = ctypes.cast(address, ctypes.py_object).value  # it lives, since its step is being traced
        current = private(_TRANSLATOR)
        graph: Any = getattr(None if current is None else current(), "output", None)
        compiler = getattr(graph, "compiler_fn", None)
        if compiler is None:  # this PyTorch keeps the graph's compiler elsewhere
            return
        optimizers = getattr(compiler, "steptrace_optimizers", None)
        if optimizers is None:
            graph.compiler_fn = self._counting(compiler, [optimizer])
        else:
            optimizers.append(optimizer)

    def _counting(self, compiler: Wrapped, optimizers: list[Any]) -> Wrapped:
        """A graph's compiler whose compiled graph reports a step of each of these optimizers at the end of a call."""

        @functools.wraps(compiler)
        def compile_graph(*args: Any, **kwargs: Any) -> Any:
            graph = compiler(*args, **kwargs)

            def call_graph(_optimizer: Any, *inputs: Any) -> Any:
                return graph(*inputs)

            update = self._around_optimizer(call_graph)

            @functools.wraps(graph)
            def run(*inputs: Any) -> Any:
                first, *other_optimizers = optimizers
                if self.before_update is not None:
                    for optimizer in other_optimizers:
                        self.tell(self.before_update, optimizer)
                result = update(first, *inputs)
                for optimizer in other_optimizers:
                    self.tell(self.finder.optimizer_stepped, optimizer)
                return result

            return run

        compile_graph.steptrace_optimizers = optimizers  # type: ignore[attr-defined]
        return compile_graph

    def _is_in_one_graph(self) -> bool:
        """Whether Dynamo traces the caller into a graph that may not end there."""
        # True only where Dynamo traces this function: `is_compiling` is true while any other thread compiles, too.
        return _traced_by_dynamo() and not self._graph_may_end()

    def install(self) -> None:
        """Wrap PyTorch's functions. This must happen before the program creates an optimizer."""
        optimizer = torch.optim.Optimizer
        scaler = torch.amp.GradScaler
        make = optimizer.profile_hook_step

        def profile_hook_step(function: Any) -> Any:
            self.finder.has_optimizer = True  # PyTorch calls this when the first optimizer of a class is created
            # Around PyTorch's own label and hooks, since a step must not end inside them.
            return self._around_optimizer(make(function))

        optimizer.profile_hook_step = staticmethod(profile_hook_step)  # type: ignore[assignment]
        _wrap(torch.autograd, "backward", self._around_backward)
        _wrap(scaler, "step", self._around_scaler_step)
        _wrap(scaler, "scale", self._around_scale)
        _wrap(dataloader._BaseDataLoaderIter, "__next__", self._around_load)
        self.follow_graphs(torch.cuda.CUDAGraph)

    def follow_graphs(self, graph: type) -> None:
        """Let CUDA graphs of this class report at each replay what was captured: PyTorch's Python does not run then."""
        _wrap(graph, "capture_begin", self._around_capture_begin)
        _wrap(graph, "capture_end", self._around_capture_end)
        _wrap(graph, "replay", self._around_replay)

    def _around_capture_begin(self, original: Wrapped) -> Wrapped:
        def capture_begin(graph: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(graph, *args, **kwargs)
            self._captured = _Captured()
            return result

        return capture_begin

    def _around_capture_end(self, original: Wrapped) -> Wrapped:
        def capture_end(graph: Any) -> Any:
            graph.steptrace_captured = self._captured
            self._captured = None
            return original(graph)

        return capture_end

    def _around_replay(self, original: Wrapped) -> Wrapped:
        def replay(graph: Any) -> Any:
            result = original(graph)
            captured = getattr(graph, "steptrace_captured", None)
            if captured is not None and (captured.backwards or captured.optimizers):
                self.tell(self.finder.graph_replayed, captured.backwards, captured.optimizers)
            return result

        return replay

    def _label(self, name: str) -> AbstractContextManager[Any]:
        if self.look is not None:
            return self.look(name)
        if not self.labels:
            return _NOTHING
        return torch.profiler.record_function(name) if self.contain is None else _Contained(self, name)

    def _around_optimizer(self, inner: Wrapped) -> Wrapped:
        """The replacement for the `step` of a class of optimizers."""

        @functools.wraps(inner)
        def step(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if self._is_in_one_graph():
                self._report_from_graph(id(optimizer))
                return inner(optimizer, *args, **kwargs)
            finder = self.finder
            self.tell(finder.optimizer_begins)
            try:
                if self.labels or self.before_update is not None or self.in_closure is not None:
                    result = self._watched_step(inner, optimizer, args, kwargs)
                else:
                    result = inner(optimizer, *args, **kwargs)
            finally:
                self.tell(finder.optimizer_ends)
            if self._captured is not None:
                self._captured.optimizers.append(optimizer)
            self.tell(finder.optimizer_stepped, optimizer)
            return result

        return step

    def _watched_step(self, inner: Wrapped, optimizer: Any, args: Any, kwargs: Any) -> Any:
        """Run the step under its label, and call `before_update`. The label is closed while a closure runs."""
        label = self._label("optimizer")
        before_update = self.before_update

        def outside(closure: Callable[[], Any]) -> Callable[[], Any]:
            @functools.wraps(closure)
            def run() -> Any:
                nonlocal label, before_update
                label.__exit__(None, None, None)
                try:
                    with self.in_closure() if self.in_closure is not None else _NOTHING:
                        result = closure()
                    if before_update is not None:  # only at the first call
                        self.tell(before_update, optimizer)
                        before_update = None
                    return result
                finally:
                    label = self._label("optimizer")
                    label.__enter__()

            return run

        if args and callable(args[0]):
            args = (outside(args[0]), *args[1:])
        elif callable(kwargs.get("closure")):
            kwargs = {**kwargs, "closure": outside(kwargs["closure"])}
        elif before_update is not None:
            self.tell(before_update, optimizer)
        label.__enter__()
        try:
            return inner(optimizer, *args, **kwargs)
        finally:
            label.__exit__(None, None, None)

    def _around_backward(self, original: Wrapped) -> Wrapped:
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            if self._is_in_one_graph():
                return original(tensors, *args, **kwargs)
            outermost = self.tell(self._backward_begins, tensors)
            if outermost and self._captured is not None:
                self._captured.backwards += 1
            try:
                with self._label("backward") if outermost else _NOTHING:
                    return original(tensors, *args, **kwargs)
            finally:
                self.tell(self.finder.backward_ends)

        return backward

    def _backward_begins(self, tensors: Any) -> bool:
        """Report that a backward pass begins; return whether it is outside of every other backward pass."""
        outermost = not self.finder.in_backward
        self.finder.backward_begins(tensors.detach() if outermost and _is_loss(tensors) else None)
        return outermost

    def _around_scale(self, original: Wrapped) -> Wrapped:
        def scale(scaler: Any, outputs: Any) -> Any:
            if not self._is_in_one_graph():
                self.tell(self._loss_scaled, outputs)
            return original(scaler, outputs)

        return scale

    def _loss_scaled(self, outputs: Any) -> None:
        if _is_loss(outputs):
            self.finder.loss_scaled(outputs.detach())

    def _around_scaler_step(self, original: Wrapped) -> Wrapped:
        def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if self._is_in_one_graph():
                return original(scaler, optimizer, *args, **kwargs)
            before = self.finder.optimizer_calls
            result = original(scaler, optimizer, *args, **kwargs)
            if self.finder.optimizer_calls == before:
                self.tell(self._optimizer_skipped, optimizer)
            return result

        return step

    def _optimizer_skipped(self, optimizer: Any) -> None:
        self.finder.optimizer_stepped(getattr(optimizer, "optimizer", optimizer), skipped=True)

    def _around_load(self, original: Wrapped) -> Wrapped:
        loading = self._loading

        def load(iterator: Any) -> Any:
            if loading.inside:  # a loader whose data set reads from another one
                loading.size = loading.size or self.tell(_batch_size, iterator)
                return original(iterator)
            loading.size = self.tell(_batch_size, iterator)
            loading.inside = True
            asked = time.perf_counter_ns()
            try:
                with self._label("data"):
                    batch = original(iterator)
            finally:
                loading.inside = False
            waited = time.perf_counter_ns() - asked
            self.tell(self.finder.batch_loaded, waited, loading.size)
            return batch

        return load


class _Contained:
    """A label on a part of a step; an error in it does not reach the program."""

    def __init__(self, hooks: Hooks, name: str) -> None:
        self._hooks = hooks
        self._name = name
        self._label: AbstractContextManager[Any] | None = None

    def __enter__(self) -> None:
        self._label = self._hooks.tell(self._entered)

    def _entered(self) -> AbstractContextManager[Any]:
        label: AbstractContextManager[Any] = torch.profiler.record_function(self._name)
        label.__enter__()
        return label

    def __exit__(self, *error: object) -> None:
        if self._label is not None:
            self._hooks.tell(self._label.__exit__, None, None, None)


def _batch_size(iterator: Any) -> int | None:
    """The batch size that the loader's sampler says: a tensor's first dimension may be another one."""
    size = getattr(getattr(iterator, "_index_sampler", None), "batch_size", None)
    return size if isinstance(size, int) else None


def _is_loss(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.numel() == 1


def _wrap(owner: Any, name: str, around: Callable[[Wrapped], Wrapped]) -> None:
    """Wrap one of PyTorch's functions."""
    original = getattr(owner, name)
    setattr(owner, name, functools.wraps(original)(around(original)))


def _graph_may_end() -> bool:
    """Whether the graph that Dynamo traces in this thread may end early; no if PyTorch does not say so."""
    current = private(_TRANSLATOR)
    translator = None if current is None else current()
    return not (getattr(translator, "one_graph", True) or getattr(translator, "error_on_graph_break", True))
