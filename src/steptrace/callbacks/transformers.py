"""transformers: `Trainer(callbacks=[SyncLog()])` logs step time and syncs to the trainer's state."""

from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback, TrainerState

from steptrace.callbacks.step_log import StepLog


class SyncLog(TrainerCallback):
    """Logs `steptrace/step_ms` and, on a GPU, `steptrace/syncs` every so many steps. See `StepLog`.

    Entries are in `trainer.state.log_history`. A callback is not told its trainer: to send them to TensorBoard and
    other trackers as well, set `log` to `trainer.log` once there is a trainer.

    Args:
        every: optimizer steps from one entry to the next.

    Example:
        syncs = SyncLog()
        trainer = Trainer(model, arguments, train_dataset=data, callbacks=[syncs])
        syncs.log = trainer.log
    """

    def __init__(self, every: int = 50) -> None:
        self.log: Callable[[dict[str, float]], object] | None = None
        self._log = StepLog(every)

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """A step begins, before its first batch is used."""
        self._log.begin()

    def on_step_end(self, _args: Any, state: TrainerState, *_: Any, **__: Any) -> None:
        """A step ends, after the optimizer's."""
        entry = self._log.end()
        if entry is None:
            return
        if self.log is None:
            state.log_history.append({**entry, "step": state.global_step})
        else:
            self.log(entry)

    def on_evaluate(self, *_: Any, **__: Any) -> None:
        """An evaluation is no step."""
        self._log.stop()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """The training ends."""
        self._log.stop()
