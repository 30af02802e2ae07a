"""What a whole is divided into, a step's time or a device's memory: the name and the colour of each part."""

from dataclasses import dataclass
from typing import Final

from steptrace import format as fmt
from steptrace.documents.overview import part_name

#: The colour of each part of a step; a cause of idle time has one colour in every picture.
_COLOURS: Final = {
    "compute": "blue",
    "exposed_comm": "orange",
    "exposed_memory": "purple",
    "communication": "orange",
    "copies": "purple",
    "sync": "vermillion",
    "data": "orange",
    "forward": "sky",
    "loss": "vermillion",
    "backward": "blue",
    "optimizer": "green",
    "idle_sync": "vermillion",
    "idle_loader": "green",
    "idle_host": "sky",
    "idle_dependency": "grey",
    "idle_unknown": "rule",
}
#: Classes of work on the critical path, where a page calls them something else.
PATH_CLASSES: Final = {
    "loader": "data loader",
    "sync": "sync overhead",
    "launch": "launch latency",
    "queue": "queueing",
    "comm": "communication",
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
        return part_name(self.label)

    @property
    def colour(self) -> str:
        """The name of its colour in page.css."""
        return _COLOURS.get(self.label, "grey")

    @property
    def words(self) -> str:
        """Name and time: "forward 1.20 ms"."""
        return f"{self.name} {fmt.duration_ms(self.ms)}"
