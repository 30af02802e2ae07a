"""What a whole is divided into, a step's time or a device's memory: the name and the colour of each part."""

from dataclasses import dataclass
from typing import Final

from steptrace import format as fmt

#: Why a GPU is idle.
IDLE_CAUSES: Final = {
    "sync": "sync",
    "loader": "host waits for data",
    "host": "nothing launched",
    "dependency": "stream or event dependency",
    "unknown": "unknown",
}
#: Of each part of a step: its colour and its name. A cause of idle time has one colour in every picture.
_PARTS: Final = {
    "compute": ("blue", "compute"),
    "exposed_comm": ("orange", "exposed communication"),
    "exposed_memory": ("purple", "exposed copies and memsets"),
    "data": ("orange", "data"),
    "forward": ("sky", "forward"),
    "loss": ("vermillion", "loss"),
    "backward": ("blue", "backward"),
    "optimizer": ("green", "optimizer"),
    "idle_sync": ("vermillion", "idle after a sync"),
    "idle_loader": ("green", "idle, host waits for data"),
    "idle_host": ("sky", "idle, nothing launched"),
    "idle_dependency": ("grey", "idle, stream or event dependency"),
    "idle_unknown": ("rule", "idle, unknown"),
}
PART_NAMES: Final = {part: name for part, (_, name) in _PARTS.items()}
#: Classes of work on the critical path.
PATH_CLASSES: Final = {
    "host": "host",
    "loader": "data loader",
    "sync": "sync overhead",
    "launch": "launch latency",
    "queue": "queueing",
    "compute": "compute",
    "comm": "communication",
    "memory": "memory",
}
#: What memory is held for: the name on a page and the colour, in the order of a bar.
MEMORY_CATEGORIES: Final = {
    "parameters": ("parameters", "blue"),
    "gradients": ("gradients", "sky"),
    "optimizer_state": ("optimizer state", "green"),
    "activations": ("activations", "orange"),
    "inputs": ("inputs", "purple"),
    "workspaces": ("cuBLAS workspaces", "muted"),
    "temporary": ("temporary", "vermillion"),
    "unknown": ("unknown", "grey"),
}


@dataclass(frozen=True)
class Part:
    """One part of a step's time."""

    label: str
    ms: float

    @property
    def name(self) -> str:
        """What a page calls it."""
        return PART_NAMES.get(self.label, self.label)

    @property
    def colour(self) -> str:
        """The name of its colour in page.css."""
        return _PARTS.get(self.label, ("grey", ""))[0]

    @property
    def words(self) -> str:
        """Name and time: "forward 1.20 ms"."""
        return f"{self.name} {fmt.duration_ms(self.ms)}"
