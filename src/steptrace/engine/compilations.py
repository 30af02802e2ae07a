"""What torch.compile has made in this process."""

import sys
from collections.abc import Mapping


def has_compiled() -> bool:
    """Whether torch.compile has made anything in this process."""
    return bool(_compiler_counters().get("frames"))


def compilations() -> int:
    """How many graphs torch.compile has made in this process so far."""
    return int(_compiler_counters().get("stats", {}).get("unique_graphs", 0))


def _compiler_counters() -> Mapping[str, Mapping[str, int]]:
    compiler = sys.modules.get("torch._dynamo.utils")  # it takes a second to import, and most runs compile nothing
    return {} if compiler is None else compiler.counters


def recompiled(graphs: int) -> tuple[str, ...]:
    """A warning if torch.compile has made graphs during the timed steps: its time is part of theirs."""
    if graphs <= 0:
        return ()
    made = "1 graph" if graphs == 1 else f"{graphs} graphs"
    return (f"torch.compile made {made} during the timed steps: use more warm-up steps",)
