"""A rule: how often an operator on CUDA tensors makes the host wait, and where PyTorch's source says so.

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
class SyncRule:
    """One row: the number of syncs of one kind that a call makes, or `count(call)`; None if the number is not known.

    `op` is the operator's name. An operator of ATen is named without its namespace ("nonzero" stands for all its
    overloads, "fill_.Tensor" for one), any other operator with it ("my_library::nms").
    """

    op: str
    kind: str
    count: Callable[[Call], int | None] | int | None
    source: str
    reason: str

    def syncs(self, call: Call) -> int | None:
        """The syncs of one call, None where they are not known."""
        return self.count(call) if callable(self.count) else self.count


def declared_rules(program: object) -> list[SyncRule]:
    """The rows that a model or loss declares for its own operators in `predict_rules`, as mappings.

    Raises:
        PredictError: a row lacks something, or names an unknown kind.
    """
    rules = []
    for row in getattr(program, "predict_rules", ()):
        try:
            kind = row.get("kind", "stream")
            rule = SyncRule(row["op"], kind, int(row["syncs"]), row["source"], row["reason"])
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
