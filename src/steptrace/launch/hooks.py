"""Wraps PyTorch's optimizers, backward passes, gradient scalers and loaders so that they report to a `StepFinder`.

The program calls these in place of PyTorch's own, so every function here is short, and none syncs with a device.
"""

import functools
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.utils.data import dataloader

from steptrace.engine.steps import StepFinder

Wrapped = Callable[..., Any]
_NOTHING = nullcontext()


class _Loading(threading.local):
    """The loaders' state in this thread: whether one is loading a batch, and the batch's samples."""

    inside = False
    size: int | None = None


class Hooks:
    """Reports the program's calls to `finder`. While `labels` is on, the parts of a step are labelled as in our loop.

    The labels are `data`, `backward` and `optimizer`; a closure passed to the optimizer's step is outside the last.
    """

    def __init__(self, finder: StepFinder) -> None:
        self.finder = finder
        self.labels = False
        #: Opens the parts of a step instead of labels.
        self.look: Callable[[str], AbstractContextManager[Any]] | None = None
        #: Called with an optimizer just before it uses its gradients.
        self.before_update: Callable[[Any], None] | None = None
        #: Entered while a closure of the program's own runs inside an optimizer's step.
        self.in_closure: Callable[[], AbstractContextManager[Any]] | None = None
        #: Gets each error of ours, so that none reaches the program; raises those that are the program's own.
        #: Without it they reach the program.
        self.contain: Callable[[BaseException], None] | None = None
        #: Whether an error was contained: from then on PyTorch's functions are called and no more.
        self.off = False
        self._loading = _Loading()

    def tell(self, report: Callable[..., Any], *args: Any) -> Any:
        """Call a function of ours; returns None where an error in it was contained."""
        if self.contain is None:
            return report(*args)
        if self.off:
            return None
        try:
            return report(*args)
        except BaseException as error:
            self.off = True
            self.contain(error)
            return None

    def install(self) -> None:
        """Wrap PyTorch; must run before the program creates an optimizer."""
        optimizer, scaler = torch.optim.Optimizer, torch.amp.GradScaler
        make = optimizer.profile_hook_step

        def profile_hook_step(function: Any) -> Any:
            self.finder.has_optimizer = True  # PyTorch asks when the first optimizer of a class is made
            # Outside PyTorch's own label and hooks: a step must not end inside them.
            return self._around_optimizer(make(function))

        optimizer.profile_hook_step = staticmethod(profile_hook_step)  # type: ignore[assignment]
        _wrap(torch.autograd, "backward", self._around_backward)
        _wrap(scaler, "step", self._around_scaler_step)
        _wrap(scaler, "scale", self._around_scale)
        _wrap(dataloader._BaseDataLoaderIter, "__next__", self._around_load)

    def _label(self, name: str) -> AbstractContextManager[Any]:
        if self.look is not None:
            return self.look(name)
        if not self.labels:
            return _NOTHING
        return torch.profiler.record_function(name) if self.contain is None else _Contained(self, name)

    def _around_optimizer(self, inner: Wrapped) -> Wrapped:
        """The `step` of a class of optimizers."""

        @functools.wraps(inner)
        def step(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
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
            self.tell(finder.optimizer_stepped, optimizer)
            return result

        return step

    def _watched_step(self, inner: Wrapped, optimizer: Any, args: Any, kwargs: Any) -> Any:
        """Run the step under its label, which is interrupted while the program's closure runs; call `before_update`."""
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
                    if before_update is not None:  # at the first call only
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

    def _around_backward(self, original: Wrapped) -> Wrapped:
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            outermost = self.tell(self._backward_begins, tensors)
            try:
                with self._label("backward") if outermost else _NOTHING:
                    return original(tensors, *args, **kwargs)
            finally:
                self.tell(self.finder.backward_ends)

        return backward

    def _backward_begins(self, tensors: Any) -> bool:
        """Report that a backward pass begins; returns whether it is inside no other one."""
        outermost = not self.finder.in_backward
        self.finder.backward_begins(tensors.detach() if outermost and _is_loss(tensors) else None)
        return outermost

    def _around_scale(self, original: Wrapped) -> Wrapped:
        def scale(scaler: Any, outputs: Any) -> Any:
            self.tell(self._loss_scaled, outputs)
            return original(scaler, outputs)

        return scale

    def _loss_scaled(self, outputs: Any) -> None:
        if _is_loss(outputs):
            self.finder.loss_scaled(outputs.detach())

    def _around_scaler_step(self, original: Wrapped) -> Wrapped:
        def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
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
            loading.inside, loading.size = True, self.tell(_batch_size, iterator)
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
    """A label on a part of a step that cannot fail: an error in it is contained."""

    def __init__(self, hooks: Hooks, name: str) -> None:
        self._hooks, self._name = hooks, name
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
    """The batch size by the loader's sampler: a tensor's first dimension need not be it."""
    size = getattr(getattr(iterator, "_index_sampler", None), "batch_size", None)
    return size if isinstance(size, int) else None


def _is_loss(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.numel() == 1


def _wrap(owner: Any, name: str, around: Callable[[Wrapped], Wrapped]) -> None:
    """Wrap one of PyTorch's functions."""
    original = getattr(owner, name)
    setattr(owner, name, functools.wraps(original)(around(original)))
