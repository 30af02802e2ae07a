"""Lightning: `Trainer(callbacks=[SyncLog()])` logs step time and syncs to the trainer's loggers."""

from typing import Any

import lightning

from steptrace.callbacks.step_log import StepLog


class SyncLog(lightning.Callback):
    """Logs `steptrace/step_ms` and, on a GPU, `steptrace/syncs` every so many batches. See `StepLog`.

    Args:
        every: batches from one entry to the next.

    Attributes:
        entries: what was logged, also where the trainer has no logger: pairs of the global step and the entry.
    """

    def __init__(self, every: int = 50) -> None:
        self.entries: list[tuple[int, dict[str, float]]] = []
        self._log = StepLog(every)

    def on_train_batch_start(self, *_: Any, **__: Any) -> None:
        """A batch begins."""
        self._log.begin()

    def on_train_batch_end(self, trainer: lightning.Trainer, *_: Any, **__: Any) -> None:
        """A batch ends."""
        entry = self._log.end()
        if entry is None:
            return
        self.entries.append((trainer.global_step, entry))
        for logger in trainer.loggers:  # not by `log_dict`, which copies each value to the GPU
            logger.log_metrics(entry, step=trainer.global_step)

    def on_validation_start(self, *_: Any) -> None:
        """An evaluation is no step."""
        self._log.stop()

    def on_train_end(self, *_: Any) -> None:
        """The training ends."""
        self._log.stop()

    def on_exception(self, *_: Any) -> None:
        """The training ends by an error."""
        self._log.stop()
