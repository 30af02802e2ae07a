"""Starting the ranks of a training with `torchrun`, and what its output says of the rank that failed.

When a rank ends badly, `torchrun` ends the others and closes with a summary of all failures. The others often fail
too, because their connection is gone. The summary's root cause is the earliest failure to the second, so it may be
one of those: a rank that lost its connection is not the one to look at while another has a reason of its own.

There is no summary where `torchrun` ends a rank while that writes down its error: it fails to read the cut file. Then
what the ranks wrote tells, each line of a traceback with its rank.
"""

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

_FAILURES: Final = "Failures:"
_ROOT_CAUSE: Final = "Root Cause (first observed failure):"
_NO_SUMMARY: Final = "Failed to parse reply file"
_NEXT_FAILURE: Final = re.compile(r"\[\d+\]:\Z")
#: What a rank says that fails because another is gone, by gloo, NCCL and the store.
_LOST_CONNECTION: Final = re.compile(
    r"Connection (closed|reset) by|Broken pipe|ncclRemoteError|remote process exited|DistNetworkError"
)
#: The first line that is torchrun's own: `E1121 10:07:18.000000 2157 .../elastic/multiprocessing/api.py:1002] ...`.
_OWN_LINE: Final = re.compile(r"^[WEI]\d{4} .*\belastic\b")
_LINES_OF_MESSAGE: Final = 4
_FIELD: Final = re.compile(r"^\s*(rank|exitcode)\s*: (-?\d+)")
_PREFIX: Final = re.compile(r"^\[rank(\d+)\]: ?")
_RULES: Final = ("===", "---")
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
    """The failure that ended the others, as `torchrun` tells; None if `lines` tell of no rank that failed."""
    at = _last(lines, _ROOT_CAUSE)
    if at is not None:
        cause = _failures(lines, at, len(lines))
        failures = [*cause, *_failures(lines, _last(lines, _FAILURES) or at, at)] if cause else []
    else:
        failures = _tracebacks(lines) if any(_NO_SUMMARY in line for line in lines) else []
    return next((failure for failure in failures if not _is_consequence(failure)), next(iter(failures), None))


def _last(lines: Sequence[str], text: str) -> int | None:
    return next((number for number in reversed(range(len(lines))) if lines[number].strip() == text), None)


def _failures(lines: Sequence[str], start: int, end: int) -> list[RankFailure]:
    """The failures that the summary lists between two of its lines."""
    starts = [number for number in range(start, end) if _NEXT_FAILURE.match(lines[number].strip())]
    failures = []
    for first, last in pairwise([*starts, end]):
        told = lines[first:last]
        fields = {match[1]: int(match[2]) for line in told if (match := _FIELD.match(line))}
        if {"rank", "exitcode"} <= set(fields):
            rank = fields["rank"]
            failures.append(RankFailure(rank, fields["exitcode"], tuple(_traceback(told) or _own_output(lines, rank))))
    return failures


def _is_consequence(failure: RankFailure) -> bool:
    """Whether a rank failed because another had: `torchrun` ended it, or its connection was gone."""
    end = "\n".join(failure.lines[-_LINES_OF_MESSAGE:])
    return failure.exit_code == -signal.SIGTERM or _LOST_CONNECTION.search(end) is not None


def _tracebacks(lines: Sequence[str]) -> list[RankFailure]:
    """The ranks that wrote a traceback, in the order in which they began to."""
    by_rank: dict[int, list[str]] = {}
    for line in lines:
        if match := _PREFIX.match(line):
            by_rank.setdefault(int(match[1]), []).append(line[match.end() :])
    return [RankFailure(rank, 1, tuple(told)) for rank, told in by_rank.items()]


def _traceback(summary: Sequence[str]) -> list[str]:
    """The traceback in the summary of a failure, without its indent; empty if it gives none."""
    at = next((number for number, line in enumerate(summary) if line.lstrip().startswith("traceback :")), None)
    if at is None or summary[at].split(": ", 1)[-1].startswith(_NO_TRACEBACK):
        return []
    rest = [line.removeprefix("  ") for line in summary[at + 1 :] if line.strip() and not line.startswith(_RULES)]
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
