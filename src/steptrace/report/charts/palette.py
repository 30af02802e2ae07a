"""Which colour each part has, on every page: a colour means one thing.

A name here is a custom property of page.css, such as `--blue`. What is no part, such as an operator of the host, is
grey and carries its name in letters.
"""

from collections.abc import Mapping
from typing import Final

#: The colour of things that are no part of a step.
NEUTRAL: Final = "grey"

#: By part: work of a GPU, waits of a GPU or of the host, parts of a step on the host.
COLOURS: Final[Mapping[str, str]] = {
    "compute": "blue",
    "exposed_comm": "orange",
    "exposed_transfer": "orange",
    "exposed_wait": "yellow",
    "communication": "orange",
    "exposed_memory": "purple",
    "copies": "purple",
    "sync": "vermillion",
    "idle_sync": "vermillion",
    "data": "green",
    "idle_loader": "green",
    "idle_host": "sky",
    "idle_between_kernels": "brown",
    "idle_dependency": "wine",
    "idle_unknown": "rule",
    "forward": "lavender",
    "loss": "violet",
    "backward": "indigo",
    "optimizer": "olive",
    "unexplained": "band",
}


def colour_of(part: str) -> str:
    """The name of a part's colour in page.css."""
    return COLOURS.get(part, NEUTRAL)
