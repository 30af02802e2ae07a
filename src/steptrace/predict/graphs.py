"""`torch.cuda.CUDAGraph` during a prediction: a capture notes the operators, and a replay runs them once more.

On CUDA a captured operator is not run but written into the graph, anything that makes the host wait is an error, and
a replay launches the whole graph at once and writes into the memory of the capture.
"""

import weakref
from collections.abc import Callable
from itertools import count
from typing import Any, Final

import torch

from steptrace.predict import backend
from steptrace.predict.cuda_classes import current_stream
from steptrace.predict.memory import Allocator, allocator
from steptrace.predict.syncs import Syncs

#: The identifier of a pool of memory, as PyTorch has it.
_Pool = tuple[int, int]
#: Numbers of pools.
_pools: Final = count(1)


def pool_handle() -> _Pool:
    """`torch.cuda.graph_pool_handle`: a new identifier of a pool."""
    return 0, next(_pools)


class CUDAGraph:
    """`torch.cuda.CUDAGraph` on the virtual device."""

    def __init__(self, keep_graph: bool = False) -> None:  # noqa: FBT001, FBT002 - torch's own
        self.keep_graph = keep_graph
        self._pool: _Pool | None = None
        self._operators: list[Callable[[], None]] | None = None
        self._memory: _Held | None = None

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global", **_: Any) -> None:
        """Note the operators of this thread from now on.

        Raises:
            RuntimeError: CUDA cannot capture here. The messages are PyTorch's.
        """
        if self._operators is not None:
            raise RuntimeError("This CUDAGraph instance already owns a captured graph. Call reset() first.")
        if capture_error_mode not in ("global", "thread_local", "relaxed"):
            raise RuntimeError(
                f"Unknown capture error mode. Expected `global`, `thread_local`, or `relaxed`, got {capture_error_mode}"
            )
        if current_stream().stream_id == 0:
            raise RuntimeError(
                "CUDA graphs must be captured on a non-default stream. (However, after capture, it's ok to replay "
                "them on the default stream.)"
            )
        self._pool = pool_handle() if pool is None else tuple(pool)
        self._memory = _Held(allocator(backend.device_index()))
        weakref.finalize(self, self._memory.give_back).atexit = False
        if Syncs.active is not None:
            Syncs.active.thread.capture_begins()

    def capture_end(self) -> None:
        """End the capture."""
        self._operators = [] if Syncs.active is None else Syncs.active.thread.capture_ends()
        if self._memory is not None:
            self._memory.hold()

    def instantiate(self) -> None:
        """Nothing to do: there is no graph of the driver's."""

    def replay(self) -> None:
        """Run the operators of the capture once more, on the same tensors.

        Raises:
            RuntimeError: nothing was captured. The message is PyTorch's.
        """
        if self._operators is None:
            raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")
        recorder = Syncs.active
        if recorder is None or not self._operators:
            return
        with torch.no_grad(), recorder.thread.replaying():
            for run in self._operators:
                run()

    def reset(self) -> None:
        """Forget the capture, and give its memory back."""
        self._operators = None
        if self._memory is not None:
            self._memory.give_back()
            self._memory = None

    def pool(self) -> _Pool:
        """The identifier of the memory pool of the capture.

        Raises:
            RuntimeError: nothing was captured. The message is PyTorch's.
        """
        if self._pool is None:
            raise RuntimeError("Called CUDAGraph::pool() without a preceding successful capture.")
        return self._pool

    def enable_debug_mode(self) -> None:
        """Nothing to do: there is no graph of the driver's to write."""

    def debug_dump(self, debug_path: str) -> None:
        """Nothing to do: there is no graph of the driver's to write."""


class _Held:
    """The memory that a graph keeps for the tensors which its program has let go: their places are in the graph."""

    def __init__(self, memory: Allocator) -> None:
        self._memory = memory
        self._bytes = 0
        self._peak_before = memory.peak
        memory.reset_peak()

    def hold(self) -> None:
        """The capture has ended: keep the most that it has needed at once."""
        self._bytes = max(0, self._memory.peak - self._memory.live)
        self._memory.peak = max(self._memory.peak, self._peak_before)
        if self._bytes:
            self._memory.allocate(self._bytes)

    def give_back(self) -> None:
        """The graph is gone."""
        if self._bytes:
            self._memory.free(self._bytes)
        self._bytes = 0
