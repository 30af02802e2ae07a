"""What a whole is divided into, a step's time or a device's memory: the colour of each part."""

from typing import Final

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
#: What memory is held for, in the order of a bar, with the colour.
MEMORY_COLOURS: Final = {
    "parameters": "blue",
    "gradients": "sky",
    "optimizer_state": "green",
    "activations": "orange",
    "inputs": "purple",
    "workspaces": "muted",
    "temporary": "vermillion",
    "unknown": "grey",
}


def colour_of(part: str) -> str:
    """The name of a part's colour in page.css."""
    return _COLOURS.get(part, "grey")
