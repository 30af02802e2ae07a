"""The mean step time between two log entries, and the syncs of the last step of each."""

import time
from contextlib import ExitStack

import torch

from steptrace.engine.step_recorders import counted_warnings


class StepLog:
    """Times steps, and counts syncs in one of so many steps, by `torch.cuda.set_sync_debug_mode`.

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
        self._since: tuple[float, int] | None = None  # when the steps of the next entry began, and after how many
        self._counts: list[int] = []
        self._watch = ExitStack()

    def begin(self) -> None:
        """A step begins."""
        self._since = self._since or (time.perf_counter(), self.steps)
        if (self.steps + 1) % self.every == 0 and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            self._watch.enter_context(counted_warnings(self._counts))

    def end(self) -> dict[str, float] | None:
        """A step ends.

        Returns:
            In one of `every` steps the entry: `steptrace/step_ms`, the mean time per step since the last one in ms, and
            `steptrace/syncs`, the syncs of this step; without a GPU they are not measured, and left out.
        """
        self._watch.close()
        self.steps += 1
        if self.steps % self.every or self._since is None:
            return None
        since, first = self._since
        now = time.perf_counter()
        self._since = now, self.steps
        syncs: dict[str, float] = {"steptrace/syncs": self._counts.pop()} if self._counts else {}
        return {"steptrace/step_ms": 1e3 * (now - since) / (self.steps - first), **syncs}

    def stop(self) -> None:
        """The training pauses or ends, as for an evaluation: time until the next step does not count."""
        self._watch.close()
        self._counts.clear()
        self._since = None
