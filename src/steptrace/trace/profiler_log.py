"""The messages of PyTorch's profiler that a trace holds: which records it says that it has lost.

Some versions of Kineto write their log behind the events, a list of texts for each level: `"WARNING": ["Dropped 12
activity records"]`. Others only print it.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from steptrace.documents.note import Note, note
from steptrace.trace.decode import MOST

#: The levels whose messages tell of losses, as keys of the metadata.
_LEVELS: Final = ("ERROR", "WARNING", "INFO")
_DROPPED: Final = re.compile(r"\bDropped (\d{1,15}) activity records")
#: The buffers were full, so that the profiler stopped recording the GPU.
_STOPPED: Final = re.compile(
    r"Exceeded max GPU buffer count|stopped by GPU profiler|stopped early\? = [1-9]|collection was stopped early"
)


def lost_by_log(metadata: Mapping[str, Any]) -> Note | None:
    """A note on the records that the profiler says it has lost; None if it says nothing of that.

    Args:
        metadata: the keys beside a trace's events.
    """
    messages = list(_messages(metadata))
    dropped = sum(int(number) for message in messages for number in _DROPPED.findall(message))
    stopped = any(_STOPPED.search(message) for message in messages)
    return note("profiler_lost_records", dropped=min(dropped, MOST), stopped=stopped) if dropped or stopped else None


def _messages(metadata: Mapping[str, Any]) -> Iterator[str]:
    for level in _LEVELS:
        found = metadata.get(level)
        yield from (text for text in (found if isinstance(found, list) else [found]) if isinstance(text, str))
