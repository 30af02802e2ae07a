"""The state of each thread of a followed program: its labels, the part of the step, and the CUDA graph it captures."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor

from steptrace.predict.places import region_of
from steptrace.predict.pytorch import current_node
from steptrace.predict.threads import Helper

#: The beginning of the label under which PyTorch runs an optimizer's step.
_OPTIMIZER: Final = "Optimizer.step#"


class ThreadState(threading.local):
    """The state of the thread that asks for it.

    A thread counts as one that prepares data until it takes a weight.

    Attributes:
        is_owner: whether it is the training's thread.
        part: the part of the step outside of the backward pass and the optimizer: `data`, `forward` or `other`.
        running: the `record_function` labels that are running, each of them once.
        in_optimizer: whether an optimizer's label is among them.
        is_paused: whether nothing is recorded, since the program does not run.
        region: the call of compiled code that is running (`steptrace.predict.compiled`); None outside of any.
        pending_syncs: syncs of the next operator that wait for work that the operator itself launches.
        helper: set for a thread other than the training's, once it has operated on the device.

    Args:
        owner: the identifier of the training's thread.
    """

    part = "data"
    running: tuple[str, ...] = ()
    in_optimizer = False
    is_paused = False
    region: Any = None
    pending_syncs = 0
    helper: Helper | None = None
    #: The `record_function` labels, the outermost first.
    _labels: tuple[str, ...] = ()
    #: What a CUDA graph has captured so far; None while none captures.
    _captured: list[Callable[[], None]] | None = None
    #: Whether a CUDA graph is replayed, and the part of the step in which its running operator was captured.
    _replays = False
    _replayed_part = ""
    #: Whether the replay has launched nothing so far.
    _replay_begins = False

    def __init__(self, owner: int) -> None:
        self.is_owner = threading.get_ident() == owner

    # Labels

    @property
    def label(self) -> str | None:
        """The innermost `record_function` label."""
        return self._labels[-1] if self._labels else None

    def enter(self, label: str) -> None:
        """A `record_function` block begins."""
        self._set_labels((*self._labels, label))

    def leave(self) -> None:
        """The innermost `record_function` block ends."""
        self._set_labels(self._labels[:-1])

    @contextmanager
    def outside_optimizer(self) -> Iterator[None]:
        """A context for a closure of the program inside an optimizer's step, which is no part of the optimizer."""
        labels = self._labels
        self._set_labels(tuple(label for label in labels if not label.startswith(_OPTIMIZER)))
        try:
            yield
        finally:
            self._set_labels(labels)

    def _set_labels(self, labels: tuple[str, ...]) -> None:
        self._labels = labels
        self.running = tuple(dict.fromkeys(labels))
        self.in_optimizer = any(label.startswith(_OPTIMIZER) for label in labels)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """A context in which nothing of this thread is recorded: what runs here is not the program's."""
        before = self.is_paused
        self.is_paused = True
        try:
            yield
        finally:
            self.is_paused = before

    # The part of the step

    def batch_arrives(self) -> None:
        """Note that a batch has arrived, or that a step begins: copies to the device from now on are data."""
        self.part = "data"

    def forward_begins(self) -> None:
        """A function that autograd records is called, outside of a backward pass."""
        if current_node() is None and not self.in_optimizer:
            self.part = "forward"

    def begins(self, tensors: Sequence[Tensor], node: object, *, from_host: bool, prepares: bool) -> None:
        """Find the part of the step for an operator or kernel that is about to run; arguments as `Syncs.begins`."""
        part = self.part
        if self._replays:
            pass
        elif node is not None or self.in_optimizer:
            self.part = "other"
        elif from_host:
            self.part = "data" if part == "other" else part
        elif prepares or part == "forward":
            pass
        elif part == "other" and not torch.is_grad_enabled():
            pass  # an evaluation between two steps
        elif any(map(_is_trained, tensors)) or (tensors and part == "data" and self._is_training(tensors)):
            self.part = "forward"

    def phase(self, node: object) -> str:
        """The part of the step that is running: `data`, `forward`, `backward`, `optimizer` or `other`.

        `node` is the running autograd node, None outside of a backward pass.
        """
        if self._replays:
            return self._replayed_part
        if node is not None:
            return "backward"
        return "optimizer" if self.in_optimizer else self.part

    def _is_training(self, tensors: Sequence[Tensor]) -> bool:
        """Whether work on these tensors is more than the preparation of a batch, which other threads do, too."""
        return self.is_owner or any(tensor.requires_grad for tensor in tensors)

    @property
    def holds_up_training(self) -> bool:
        """Whether the training waits where this thread waits. A thread that prepares batches waits beside it."""
        return self.is_owner or self.part != "data"

    # Compiled code

    def region_of(self, node: object) -> Any:
        """The call of compiled code to which an operator belongs; in a backward pass, that of the running node."""
        return self.region if node is None else region_of(node)

    # CUDA graphs

    @property
    def is_capturing(self) -> bool:
        """Whether a CUDA graph captures what this thread launches: it is written into the graph, and does not run."""
        return self._captured is not None and not self.is_paused

    def capture_begins(self) -> None:
        """A CUDA graph captures this thread's operators from now on.

        Raises:
            RuntimeError: another one does. The message is PyTorch's.
        """
        if self._captured is not None:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
        self._captured = []

    def capture_ends(self) -> list[Callable[[], None]]:
        """The functions that run the captured operators once more, in their order."""
        captured = self._captured or []
        self._captured = None
        return captured

    def capture(self, run: Callable[[], None], node: object) -> None:
        """Note an operator that the graph captures. It counts for the part of the step that runs now.

        Args:
            run: runs the operator once more.
            node: the running autograd node, or None.
        """
        if self._captured is None:
            return
        part = self.phase(node)

        def replay() -> None:
            self._replayed_part = part
            run()

        self._captured.append(replay)

    @contextmanager
    def replaying(self) -> Iterator[None]:
        """A context in which operators run that a CUDA graph launches at once."""
        before = self._replays, self._replayed_part
        self._replays = True
        self._replay_begins = True
        try:
            yield
        finally:
            self._replays, self._replayed_part = before

    def is_launched_by_graph(self) -> bool:
        """Whether a CUDA graph launches the operator; the first one of a replay stands for the graph's own launch."""
        is_first = self._replay_begins
        self._replay_begins = False
        return self._replays and not is_first


def _is_trained(tensor: Tensor) -> bool:
    """Whether a tensor is a weight, or a leaf that gets a gradient: what takes one is part of a forward pass."""
    return isinstance(tensor, torch.nn.Parameter) or (tensor.requires_grad and tensor.is_leaf)
