"""steptrace: a reproducible lab for training-step performance.

`load_trace`, `load_study` and `predict_syncs` are imported when they are first used: a program that `steptrace run`
measures imports this package, and may have none of the libraries that they need.
"""

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from steptrace.library import LoadedStudy, LoadedTrace, load_study, load_trace
    from steptrace.predict import predict_syncs

__version__ = "0.1.0"

__all__ = ["LoadedStudy", "LoadedTrace", "load_study", "load_trace", "predict_syncs", "step"]

#: Name -> the module that it is imported from.
_LAZY: Final = {
    **dict.fromkeys(("LoadedStudy", "LoadedTrace", "load_study", "load_trace"), "steptrace.library"),
    "predict_syncs": "steptrace.predict",
}

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


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'steptrace' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
