"""The CUDA streams that each thread of a program has chosen."""

import threading
from typing import Any, Final


class _ChosenStreams(threading.local):
    """The streams that this thread has chosen, by the number of the GPU; one that is missing has its default stream."""

    def __init__(self) -> None:
        self.streams: dict[int, Any] = {}


CHOSEN: Final = _ChosenStreams()


def is_default(stream: Any) -> bool:
    """Whether this is a GPU's default stream; None stands for it."""
    return stream is None or stream.stream_id == 0
