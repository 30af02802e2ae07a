"""Starting the ranks of a training with `torchrun`, and what its output says of the rank that failed.

When a rank ends badly, `torchrun` ends the others and closes with a summary of all failures. The others often fail
too, because their connection is gone: the summary's root cause is the rank to look at.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_ROOT_CAUSE: Final = "Root Cause (first observed failure):"
#: The first line that is torchrun's own: `E1121 10:07:18.000000 2157 .../elastic/multiprocessing/api.py:1002] ...`.
_OWN_LINE: Final = re.compile(r"^[WEI]\d{4} .*\belastic\b")
_FIELD: Final = re.compile(r"^\s*(rank|exitcode)\s*: (-?\d+)")
_PREFIX: Final = re.compile(r"^\[rank(\d+)\]: ?")
_NO_TRACEBACK: Final = ("Signal ", "To enable traceback")


@dataclass(frozen=True)
class RankFailure:
    """The rank that failed first, its exit code (negative for a signal), and its own last lines."""

    rank: int
    exit_code: int
    lines: tuple[str, ...]


def launcher(world_size: int) -> str:
    """What stands between `python` and `-m module` to start that many ranks on this machine; empty for one.

    No address but the loopback's is used: a machine without a network, or one that does not know its own name, will do.
    """
    if world_size == 1:
        return ""
    return f"-m torch.distributed.run --standalone --local-addr 127.0.0.1 --nproc-per-node {world_size}"


def first_failure(lines: Sequence[str]) -> RankFailure | None:
    """The failure that `torchrun` names as the root cause; None if `lines` hold no such summary."""
    starts = [number for number, line in enumerate(lines) if line.strip() == _ROOT_CAUSE]
    if not starts:
        return None
    summary = lines[starts[-1] :]
    fields = {match[1]: int(match[2]) for line in summary if (match := _FIELD.match(line))}
    if not {"rank", "exitcode"} <= set(fields):
        return None
    told = _traceback(summary)
    return RankFailure(fields["rank"], fields["exitcode"], tuple(told or _own_output(lines, fields["rank"])))


def _traceback(summary: Sequence[str]) -> list[str]:
    """The traceback in the summary of a failure, without its indent; empty if it gives none."""
    at = next((number for number, line in enumerate(summary) if line.lstrip().startswith("traceback :")), None)
    if at is None or summary[at].split(": ", 1)[-1].startswith(_NO_TRACEBACK):
        return []
    rest = [line.removeprefix("  ") for line in summary[at + 1 :] if line.strip() and not line.startswith("===")]
    return ["Traceback (most recent call last):", *rest]


def _own_output(lines: Sequence[str], rank: int) -> list[str]:
    """What the rank itself wrote, as far as lines say whose they are: those of other ranks are left out."""
    end = next((number for number, line in enumerate(lines) if _OWN_LINE.match(line)), len(lines))
    written = []
    for line in lines[:end]:
        match = _PREFIX.match(line)
        if match is None or int(match[1]) == rank:
            written.append(line[match.end() :] if match else line)
    return written
