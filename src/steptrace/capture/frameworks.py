"""`Capture` for trainings whose loop is a framework's: one callback instead of a line in the loop.

Each takes the arguments of `Capture`. The frameworks are imported when a callback is made, by their public names alone.
"""

from typing import Any

from steptrace.capture.job import Capture


def lightning_callback(*args: Any, **kwargs: Any) -> Any:
    """A callback for Lightning's Trainer: a step is one of its `global_step`s.

    Example:
        trainer = lightning.Trainer(callbacks=[lightning_callback("captures")])
    """
    from lightning.pytorch import Callback

    class CaptureCallback(Callback):  # type: ignore[misc]
        """Counts the steps of one `fit`."""

        def on_train_start(self, trainer: Any, _module: Any) -> None:
            self.capture, self.steps = Capture(*args, **kwargs), trainer.global_step

        def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
            if trainer.global_step != self.steps:  # batches of which several make a step come by here, too
                self.steps = trainer.global_step
                self.capture.step()

        def on_train_end(self, _trainer: Any, _module: Any) -> None:
            self.capture.close()

    return CaptureCallback()


def trainer_callback(*args: Any, **kwargs: Any) -> Any:
    """A callback for the Trainer of transformers.

    Example:
        trainer = transformers.Trainer(..., callbacks=[trainer_callback("captures")])
    """
    from transformers import TrainerCallback

    class CaptureCallback(TrainerCallback):  # type: ignore[misc]
        """Counts the steps of one `train`."""

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            self.capture = Capture(*args, **kwargs)

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.capture.step()

        def on_train_end(self, *_: Any, **__: Any) -> None:
            self.capture.close()

    return CaptureCallback()
