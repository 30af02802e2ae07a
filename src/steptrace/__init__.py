"""steptrace: a reproducible lab for training-step performance.

`load_trace`, `load_study` and `predict_syncs` are imported when they are first used: a program that `steptrace run`
measures imports this package, and may have none of the libraries that they need.
"""

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from steptrace.version import VERSION

if TYPE_CHECKING:
    from steptrace.library import LoadedStudy, LoadedTrace, load_study, load_trace
    from steptrace.operator_costs import OperatorCost, operator_cost
    from steptrace.predict import Syncs, predict_syncs

__version__ = VERSION

__all__ = [
    "LoadedStudy", "LoadedTrace", "OperatorCost", "Syncs", "load_study", "load_trace", "operator_cost", "predict_syncs",
    "step",
]  # fmt: skip

#: Name -> the module that it is imported from.
_LAZY: Final = {
    **dict.fromkeys(("LoadedStudy", "LoadedTrace", "load_study", "load_trace"), "steptrace.library"),
    **dict.fromkeys(("OperatorCost", "operator_cost"), "steptrace.operator_costs"),
    **dict.fromkeys(("Syncs", "predict_syncs"), "steptrace.predict"),
}

#: In a program that `steptrace run` has started: called at each call of `step`.
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
        try:
            return getattr(importlib.import_module(_LAZY[name]), name)
        except ModuleNotFoundError as error:
            from steptrace.extras import named

            raise named(error) from None
    raise AttributeError(f"module 'steptrace' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
