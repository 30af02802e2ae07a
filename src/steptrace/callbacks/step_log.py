"""The mean step time between two log entries, and the syncs of the last step of each."""

import time
from contextlib import AbstractContextManager

import torch

from steptrace.engine.step_recorders import counted_warnings


class StepLog:
    """Times steps, and counts syncs in one of so many steps.

    Syncs are those that PyTorch's own check warns of (`torch.cuda.set_sync_debug_mode`). It is on in that step only.
    Reading the clock makes no sync: on a GPU a single step's time says little, and the mean of many is right.

    Args:
        every: steps from one entry to the next.

    Example:
        log = StepLog(every=50)
        for batch in loader:
            log.begin()
            train_step(batch)
            if (entry := log.end()) is not None:
                print(entry)      # {"steptrace/step_ms": 31.4, "steptrace/syncs": 2}
    """

    def __init__(self, every: int = 50) -> None:
        self.every = every
        self.steps = 0
        self._since: float | None = None
        self._first = 0
        self._counts: list[int] = []
        self._watch: AbstractContextManager[None] | None = None

    def begin(self) -> None:
        """A step begins."""
        if self._since is None:
            self._since, self._first = time.perf_counter(), self.steps
        if (self.steps + 1) % self.every == 0 and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            self._watch = counted_warnings(self._counts)
            self._watch.__enter__()

    def end(self) -> dict[str, float] | None:
        """A step ends.

        Returns:
            In one of `every` steps the entry: `steptrace/step_ms`, the mean time per step since the last one in ms, and
            `steptrace/syncs`, the syncs of this step; without a GPU they are not measured, and left out.
        """
        syncs = self._stop_watching()
        self.steps += 1
        if self.steps % self.every or self._since is None:
            return None
        now = time.perf_counter()
        entry = {"steptrace/step_ms": 1e3 * (now - self._since) / (self.steps - self._first)}
        self._since, self._first = now, self.steps
        return entry if syncs is None else {**entry, "steptrace/syncs": syncs}

    def stop(self) -> None:
        """The training pauses or ends, as for an evaluation: time until the next step does not count."""
        self._stop_watching()
        self._since = None

    def _stop_watching(self) -> int | None:
        if self._watch is None:
            return None
        self._watch.__exit__(None, None, None)
        self._watch = None
        return self._counts.pop()
