"""What of PyTorch is wrapped, so that a `StepFinder` hears of it: optimizers, backward passes, scalers, loaders.

Called by the program in place of PyTorch's own, so every function here is short, and none waits for a device.
"""

import functools
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.utils.data import dataloader

from steptrace.launch.steps import StepFinder

_NOTHING = nullcontext()


class CompiledOptimizer:
    """Stands for the optimizers whose step is called in code that torch.compile has compiled.

    Such code shows no call, but torch.compile repeats what it has stored in an object: `stepped` is seen at the next
    backward pass or batch.
    """

    stepped = False


class Hooks:
    """Tells `finder` what the program does. While `labels` is on, the parts of a step are labelled as in our own loop.

    The labels are `data`, `backward` and `optimizer`; what of an optimizer's step is a closure of the program's own
    lies outside of the last one.
    """

    def __init__(self, finder: StepFinder) -> None:
        self.finder = finder
        self.labels = False
        #: Called with an optimizer that is about to use its gradients.
        self.before_update: Callable[[Any], None] | None = None
        self.compiled = CompiledOptimizer()
        self._loading = threading.local()

    def install(self) -> None:
        """Wrap; to be done before the program makes an optimizer."""
        optimizer, scaler = torch.optim.Optimizer, torch.amp.GradScaler
        make = optimizer.profile_hook_step

        def profile_hook_step(function: Any) -> Any:
            # Outside of PyTorch's own label and hooks: a step must not end inside of them.
            return self._around_optimizer(make(function))

        optimizer.profile_hook_step = staticmethod(profile_hook_step)  # type: ignore[assignment]
        _wrap(torch.autograd, "backward", self._backward)
        _wrap(torch.autograd, "grad", self._grad)
        _wrap(scaler, "step", self._scaler_step)
        _wrap(scaler, "scale", self._scale)
        _wrap(dataloader._BaseDataLoaderIter, "__next__", self._load)

    def _label(self, name: str) -> AbstractContextManager[Any]:
        return torch.profiler.record_function(name) if self.labels else _NOTHING

    def _around_optimizer(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        """The `step` of a class of optimizers."""

        @functools.wraps(inner)
        def step(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                result = inner(optimizer, *args, **kwargs)
                self.compiled.stepped = True
                return result
            return self._optimizer_step(inner, optimizer, args, kwargs)

        return step

    def _optimizer_step(self, inner: Callable[..., Any], optimizer: Any, args: Any, kwargs: Any) -> Any:
        finder = self.finder
        finder.optimizer_begins()
        try:
            if self.labels or self.before_update is not None:
                result = self._watched_step(inner, optimizer, args, kwargs)
            else:
                result = inner(optimizer, *args, **kwargs)
        finally:
            finder.optimizer_ends()
        finder.optimizer_stepped(optimizer)
        return result

    def _watched_step(self, inner: Callable[..., Any], optimizer: Any, args: Any, kwargs: Any) -> Any:
        """With a label, which is interrupted while a closure of the program's own runs, and `before_update`."""
        label = self._label("optimizer")
        before_update = self.before_update

        def outside(closure: Callable[[], Any]) -> Callable[[], Any]:
            @functools.wraps(closure)
            def run() -> Any:
                nonlocal label, before_update
                label.__exit__(None, None, None)
                try:
                    result = closure()
                    if before_update is not None:  # of several calls the first
                        before_update(optimizer)
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
            before_update(optimizer)
        label.__enter__()
        try:
            return inner(optimizer, *args, **kwargs)
        finally:
            label.__exit__(None, None, None)

    def _see_compiled(self) -> None:
        """Notice a step of compiled code that is over."""
        if self.compiled.stepped:
            self.compiled.stepped = False
            self.finder.optimizer_stepped(self.compiled)

    def _backward(self, original: Callable[..., Any], tensors: Any, *args: Any, **kwargs: Any) -> Any:
        finder = self.finder
        self._see_compiled()
        outermost = not finder.in_backward
        finder.backward_begins(tensors.detach() if outermost and _is_loss(tensors) else None)
        try:
            with self._label("backward") if outermost else _NOTHING:
                return original(tensors, *args, **kwargs)
        finally:
            finder.backward_ends()

    def _grad(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if not self.finder.in_backward:
            self.finder.gradient_computed()
        return result

    def _scale(self, original: Callable[..., Any], scaler: Any, outputs: Any) -> Any:
        if _is_loss(outputs):
            self.finder.loss_scaled(outputs.detach())
        return original(scaler, outputs)

    def _scaler_step(self, original: Callable[..., Any], scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        before = self.finder.optimizer_calls
        result = original(scaler, optimizer, *args, **kwargs)
        if self.finder.optimizer_calls == before:
            self.finder.optimizer_stepped(getattr(optimizer, "optimizer", optimizer), skipped=True)
        return result

    def _load(self, original: Callable[..., Any], iterator: Any) -> Any:
        if getattr(self._loading, "inside", False):  # a loader whose data set reads from another one
            return original(iterator)
        self._see_compiled()
        self._loading.inside = True
        asked = time.perf_counter_ns()
        try:
            with self._label("data"):
                batch = original(iterator)
        finally:
            self._loading.inside = False
        size = getattr(getattr(iterator, "_index_sampler", None), "batch_size", None)
        self.finder.batch_loaded(time.perf_counter_ns() - asked, size if isinstance(size, int) else None)
        return batch


def _is_loss(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.numel() == 1


def _wrap(owner: Any, name: str, around: Callable[..., Any]) -> None:
    """Put a function around one of PyTorch's, which it is given first."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return around(original, *args, **kwargs)

    setattr(owner, name, wrapper)
