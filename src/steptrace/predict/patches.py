"""Sets up the changes that a prediction makes in the process. Each feature replaces some attributes.

A feature is left out if PyTorch lacks a name that it needs. The answer of the prediction then says so.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from steptrace.predict.backend import Replacements
from steptrace.predict.syncs import Syncs

_MISSING = object()


@dataclass(frozen=True)
class Feature:
    """Attributes of PyTorch and Python that are replaced together, or a setting of PyTorch.

    Attributes:
        name: a short name.
        reason: why a prediction needs it.
        lost: what the answer lacks without it.
        set_up: gives the attributes by owner and name, or a context that yields them and undoes its settings.
        stays: whether Dynamo needs it, too, when it follows compiled code.
    """

    name: str
    reason: str
    lost: str
    set_up: Callable[[Syncs], Replacements | AbstractContextManager[Replacements]]
    stays: bool = False


@contextmanager
def applied(features: Sequence[Feature], recorder: Syncs) -> Iterator[None]:
    """A context in which the features are set up, in their order. They are undone in the reverse order.

    All features read the attributes before the first one is replaced, and no two replace the same attribute. So their
    order matters only for PyTorch's settings. `recorder` notes a feature that cannot be set up.
    """
    with ExitStack() as stack:
        replacements: Replacements = {}
        for feature in features:
            try:
                prepared = feature.set_up(recorder)
                of_feature = stack.enter_context(nullcontext(prepared) if isinstance(prepared, dict) else prepared)
            except (AttributeError, ImportError) as error:
                recorder.lacks(f"{feature.lost} ({feature.name}: {error})")
                continue
            replacements |= of_feature
            if not feature.stays:
                recorder.compilation.originals |= {
                    (owner, name): vars(owner)[name] for owner, name in of_feature if name in vars(owner)
                }
        for (owner, name), value in replacements.items():
            stack.enter_context(_replaced(owner, name, value))
        yield


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Set an attribute of a module or class for a while, creating it if it is inherited or missing."""
    before = vars(owner).get(name, _MISSING)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if before is _MISSING:
            delattr(owner, name)
        else:
            setattr(owner, name, before)
