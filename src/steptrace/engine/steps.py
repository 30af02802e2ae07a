"""Finds where the steps of any training end, from the calls of its optimizers. Plain Python.

- The optimizer that steps least often ends a step; of several equally rare ones, the last. One that steps less than
  once in a hundred calls of another is ignored.
- An optimizer called again without new gradients continues its step (ZeRO partitions, groups).
- Optimizers that step during a backward pass together end one step, at the end of that pass.
- A step that a gradient scaler skips counts as a step.
- A program with backward passes but no optimizer updates its weights by hand: each pass ends a step.
- `steptrace.step()` takes precedence over all of these.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from weakref import ref

#: An optimizer that is called less than once in this many calls of another cannot end a step.
_RAREST: Final = 100
#: Backward passes without an optimizer after which each pass ends a step.
_BY_HAND: Final = 50
#: After this many changes of the optimizer that ends a step, further ones are no longer reported as `new_leader`: the
#: program creates a new optimizer every few steps.
_MOST_LEADERS: Final = 20


@dataclass(slots=True)
class Step:
    """A step of a training.

    Attributes:
        backwards: number of backward passes.
        batches: number of batches loaded; 0 without a DataLoader.
        samples: number of samples in them; None if a loader does not give the batch size.
        wait_ns: the host's wait for the batches.
        skipped: whether a gradient scaler skipped the optimizer's step.
        new_leader: whether another optimizer ended this step than the step before, so the two cannot be compared.
        losses: the tensors that the backward passes began from, before a gradient scaler multiplied them.
    """

    backwards: int = 0
    batches: int = 0
    samples: int | None = 0
    wait_ns: int = 0
    skipped: bool = False
    new_leader: bool = False
    losses: list[Any] = field(default_factory=list)


class _Seen:
    """An optimizer, as a weak reference, and its steps so far."""

    __slots__ = ("gradients", "name", "optimizer", "steps")

    def __init__(self, optimizer: Any, forget: Callable[[Any], object]) -> None:
        self.optimizer = ref(optimizer, forget)
        self.name = type(optimizer).__name__
        self.steps = 0
        #: Number of backward passes that had ended at its last step.
        self.gradients = 0


class StepFinder:
    """Calls `on_step` at the end of each step; the other methods report the program's calls to it.

    Example:
        finder = StepFinder(lambda step: print(step.backwards))
        finder.backward_begins(), finder.backward_ends(), finder.optimizer_stepped(optimizer)
    """

    def __init__(self, on_step: Callable[[Step], None]) -> None:
        self._on_step = on_step
        #: Whether the program has created an optimizer, stepped or not.
        self.has_optimizer = False
        #: Called at the end of each backward pass with the number of passes in this step.
        self.on_pass: Callable[[int], None] | None = None
        self.restart()

    def restart(self) -> None:
        """Forget all that was seen."""
        self._step = Step()
        self._seen: dict[int, _Seen] = {}
        #: Steps of deleted optimizers, by the name of their class.
        self._gone: Counter[str] = Counter()
        self._leader: _Seen | None = None
        self._leaders = 0
        self._settled = False
        self._explicit = False
        self._ended_by_call = False
        self._by_graph = False
        self._backward_depth = 0
        self._optimizer_depth = 0
        self._pending: Any = None
        self._gradients = 0
        self._passes = 0
        self._scaled: Any = None
        #: Calls of all optimizers; a gradient scaler's call that adds none was skipped.
        self.optimizer_calls = 0

    @property
    def in_backward(self) -> bool:
        """Whether a backward pass is under way."""
        return self._backward_depth > 0

    @property
    def optimizers(self) -> list[tuple[str, int]]:
        """Class name and number of steps of each optimizer, in the order of their first step; deleted ones last."""
        return [*((seen.name, seen.steps) for seen in self._seen.values()), *self._gone.items()]

    @property
    def live_optimizers(self) -> list[Any]:
        """The optimizers that have stepped and still exist."""
        return [optimizer for seen in self._seen.values() if (optimizer := seen.optimizer()) is not None]

    def settle(self) -> None:
        """From now on the same optimizer ends every step."""
        self._settled = True

    def backward_begins(self, loss: Any = None) -> None:
        """A backward pass begins, from `loss`."""
        if not self._backward_depth:
            self._step.backwards += 1
            if loss is not None:
                self._step.losses.append(loss if self._scaled is None else self._scaled)
            self._scaled = None
        self._backward_depth += 1

    def backward_ends(self) -> None:
        """A backward pass ends, or raises."""
        self._backward_depth -= 1
        if not self._backward_depth:
            self._gradients += 1
            if self.on_pass is not None:
                self.on_pass(self._step.backwards)
            if self._pending is not None:
                optimizer = self._pending
                self._pending = None
                self.optimizer_stepped(optimizer)
            elif not (self.has_optimizer or self.optimizer_calls or self._explicit):
                self._passed_without_optimizer()

    def _passed_without_optimizer(self) -> None:
        self._passes += 1
        if self._passes == _BY_HAND:
            self._step = Step()
        elif self._passes > _BY_HAND:
            self._end()

    def loss_scaled(self, loss: Any) -> None:
        """Note that a gradient scaler multiplies this loss: the backward pass begins from the product."""
        self._scaled = loss

    def optimizer_begins(self) -> None:
        """An optimizer begins its step, perhaps inside another one's."""
        self._optimizer_depth += 1

    def optimizer_ends(self) -> None:
        """An optimizer ends its step, or raises."""
        self._optimizer_depth -= 1

    def optimizer_stepped(self, optimizer: Any, *, skipped: bool = False) -> None:
        """An optimizer has taken a step, or its gradient scaler has skipped it."""
        self.optimizer_calls += 1
        if self._optimizer_depth:
            return
        if self._backward_depth:
            self._pending = optimizer
            return
        key = id(optimizer)
        seen = self._seen.get(key)
        if seen is None:
            seen = _Seen(optimizer, lambda _: self._forget(key))
            self._seen[key] = seen
        # Without new gradients the optimizer continues its step. A step compiled as a whole never reports gradients.
        elif self._gradients and self._gradients == seen.gradients:
            return
        seen.gradients = self._gradients
        seen.steps += 1
        if skipped:
            self._step.skipped = True
        if self._explicit:  # the program calls `steptrace.step()`
            return
        if not self._settled and (self._leader is not seen or len(self._seen) > 1):
            leader = self._rarest()
            if leader is not self._leader:
                self._leaders += 1
                self._step.new_leader |= self._leaders <= _MOST_LEADERS
            self._leader = leader
        if seen is self._leader:
            self._ended_by_call = True
            self._end()

    def graph_replayed(self, backwards: int, optimizers: Sequence[Any]) -> None:
        """A CUDA graph was replayed in which the program captured so many backward passes, and steps of optimizers.

        The steps before it prepared the capture, or were it, so the first replay counts as a change of the optimizer.
        """
        if optimizers and not self._by_graph:
            self._by_graph = True
            self._step.new_leader = True
        for _ in range(backwards):
            self.backward_begins()
            self.backward_ends()
        for optimizer in optimizers:
            self.optimizer_stepped(optimizer)

    def _forget(self, key: int) -> None:
        """An optimizer was deleted."""
        gone = self._seen.pop(key, None)
        if gone is not None:
            self._gone[gone.name] += gone.steps

    def _rarest(self) -> _Seen:
        most = max(seen.steps for seen in self._seen.values())
        counted = [seen for seen in self._seen.values() if _RAREST * seen.steps >= most]
        return min(reversed(counted), key=lambda seen: seen.steps)

    def batch_loaded(self, wait_ns: int, samples: int | None) -> None:
        """A loader has returned a batch, after a wait of `wait_ns`."""
        step = self._step
        step.batches += 1
        step.wait_ns += wait_ns
        step.samples = None if step.samples is None or samples is None else step.samples + samples

    def step_marked(self) -> None:
        """The program has called `steptrace.step()`."""
        first = not self._explicit
        self._explicit = True
        if first and self._ended_by_call and not (self._step.backwards or self._step.batches):
            return  # the optimizer's call has ended this step already
        self._end()

    def _end(self) -> None:
        step = self._step
        self._step = Step()
        self._on_step(step)
