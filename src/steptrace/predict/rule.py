"""A rule: how often an operator on CUDA tensors makes the host wait, and where that is to be read in PyTorch.

The definition of a sync is the report's: one host operation after which the host goes on only once queued GPU work is
complete; a copy with its stream sync is one.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from steptrace.errors import PredictError
from steptrace.predict.tensor import is_virtual

#: A wait for a copy from or to the device, for a stream, an event or the whole device.
KINDS = ("d2h_copy", "h2d_copy", "stream", "event", "device")


@dataclass(frozen=True)
class Call:
    """One operator call as the rules see it: arguments by name, tensors still virtual."""

    arguments: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.arguments.get(name)

    def on_device(self, name: str) -> bool:
        """Whether the named argument is a tensor on the virtual device."""
        return is_virtual(self[name])

    def on_host(self, name: str) -> bool:
        """Whether the named argument is a CPU tensor."""
        return isinstance(self[name], Tensor) and not self.on_device(name)


@dataclass(frozen=True)
class Rule:
    """One row: `count(call)` syncs of one kind, or None where there is no count.

    `op` is the operator's name without namespace if it is one of ATen's ("nonzero" stands for all its overloads,
    "fill_.Tensor" for one), else with it ("my_library::nms").
    """

    op: str
    kind: str
    count: Callable[[Call], int | None]
    source: str
    reason: str


def declared_rules(program: object) -> list[Rule]:
    """The rows that a model or loss declares for its own operators in `predict_rules`, as mappings.

    Raises:
        PredictError: a row lacks something, or names an unknown kind.
    """
    rules = []
    for row in getattr(program, "predict_rules", ()):
        try:
            syncs, kind = int(row["syncs"]), row.get("kind", "stream")
            rule = Rule(row["op"], kind, lambda _, syncs=syncs: syncs, row["source"], row["reason"])  # type: ignore[misc]
        except (KeyError, TypeError, ValueError) as error:
            raise PredictError(
                f"a row of predict_rules cannot be read ({error!r})",
                where=type(program).__name__,
                expected="a mapping with op, syncs, source and reason",
            ) from error
        if kind not in KINDS:
            raise PredictError(f"unknown kind {kind!r}", where=type(program).__name__, expected=", ".join(KINDS))
        rules.append(rule)
    return rules


def once(_: Call) -> int:
    """One sync, whatever the arguments."""
    return 1


def never(_: Call) -> int:
    """No sync."""
    return 0


def cannot_tell(_: Call) -> None:
    """Some syncs; beside a row of the same operator that counts, perhaps more than it does."""
    return


def times(number: int) -> Callable[[Call], int]:
    """A fixed number of syncs."""
    return lambda _: number


def if_not_empty(call: Call) -> int:
    """One sync, unless the tensor is empty."""
    return int(call["self"].numel() > 0)
