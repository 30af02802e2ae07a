"""steptrace: a reproducible lab for training-step performance."""

from collections.abc import Callable

__version__ = "0.1.0"

#: Told of each call of `step`, in a program that `steptrace run` has started.
on_step: Callable[[], None] | None = None


def step() -> None:
    """A training step has ended: for programs whose steps `steptrace run` does not find. Elsewhere it does nothing.

    Example:
        for batch in loader:
            train_step(batch)
            steptrace.step()
    """
    if on_step is not None:
        on_step()
