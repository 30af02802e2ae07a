"""How a training ended: its log, exit code and the kernel's word turned into one of the statuses of a run.

The output of a supervised child is kept in a file, its progress told, its end remembered for the status.
"""

import os
import re
import signal
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from steptrace.documents.run import RunStatus
from steptrace.progress import BRIEF
from steptrace.record import OUT_OF_MEMORY
from steptrace.terminal import printable
from steptrace.train.torchrun import first_failure

#: The last line of a Python traceback: an exception's dotted name, with or without a message.
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit|Warning|Timeout|Stop\w*)\b(: .*)?\Z")
_LONGEST = 500
_TAIL_LINES = 20


@dataclass(frozen=True)
class Ending:
    """How a process ended."""

    status: RunStatus
    exit_code: int | None
    signal: int | None
    error: str | None


def classify(
    exit_code: int | None,
    lines: Sequence[str],
    *,
    problem: str | None = None,
    missing: Sequence[str] = (),
    kernel_killed: bool = False,
) -> Ending:
    """Return how a process ended.

    Args:
        exit_code: as `subprocess` gives it, negative for a signal; None if it never started.
        lines: the last lines of its output.
        problem: why it was not started, or was stopped.
        missing: files it should have left and did not.
        kernel_killed: whether the kernel killed a process for memory meanwhile.
    """
    failure = first_failure(lines) if exit_code else None
    told, who = lines, ""
    if failure is not None:  # torchrun's own ending says nothing: that of the rank counts
        exit_code, told, who = failure.exit_code, failure.lines, f"rank {failure.rank}: "
    number = -exit_code if exit_code is not None and exit_code < 0 else None
    code = exit_code if number is None else None
    if problem is not None:
        return Ending("failed", code, number, problem[:_LONGEST])
    if code == 0:
        if not missing:
            return Ending("ok", 0, None, None)
        return Ending("failed", 0, None, f"ended without an error but left no {', '.join(missing)}")
    if any(OUT_OF_MEMORY.search(line) for line in lines) or (kernel_killed and _was_killed(number, lines)):
        oom = next((line for line in reversed((*lines, *told)) if OUT_OF_MEMORY.search(line)), None)
        return Ending(
            "oom", code, number, f"{who}{(oom or 'killed by the kernel for lack of memory').strip()}"[:_LONGEST]
        )
    if number is not None:
        # A crash (SIGSEGV, SIGABRT, ...) is the program's own; SIGKILL, SIGTERM and the like come from outside.
        crashed = number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)
        return Ending("failed" if crashed else "killed", None, number, f"{who}ended by {_signal_name(number)}")
    error = _last_error(told)
    if error is None and failure is None and lines:
        error = lines[-1].strip()
    return Ending("failed", code, None, f"{who}{error or f'exit code {code}'}"[:_LONGEST])


def last_lines(lines: Sequence[str]) -> list[str]:
    """The few lines that a status carries: the end of a log, or of what the rank says that `torchrun` ended for."""
    failure = first_failure(lines)
    told = failure.lines if failure is not None and failure.lines else lines
    return [line[:_LONGEST] for line in told[-_TAIL_LINES:]]


def kernel_oom_kills(root: Path = Path("/")) -> int:
    """Return how many processes the kernel has killed for memory, in this control group or else on the machine.

    0 if neither tells; only a rise between two calls means something.
    """
    own = _own_cgroup(root)
    for path in (own / "memory.events" if own else None, root / "proc/vmstat"):
        try:
            text = path.read_text(encoding="utf-8") if path else ""
        except OSError:
            continue
        if match := re.search(r"^oom_kill (\d+)$", text, re.MULTILINE):
            return int(match[1])
    return 0


def _own_cgroup(root: Path) -> Path | None:
    try:
        text = (root / "proc/self/cgroup").read_text(encoding="utf-8")
    except OSError:
        return None
    match = re.search(r"^0::/(.*)$", text, re.MULTILINE)
    return root / "sys/fs/cgroup" / match[1] if match else None


def _was_killed(number: int | None, lines: Sequence[str]) -> bool:
    return number == signal.SIGKILL or any("killed by signal: Killed" in line for line in lines)


def _last_error(lines: Sequence[str]) -> str | None:
    """Return the last exception of the log, else its `error: ...` line."""
    raised = _line_after_frames(lines)
    for index in reversed(range(len(lines))):
        if index == raised or _EXCEPTION.match(lines[index]):
            # A message that announces its reason, as Hydra's do, has it on the next line.
            return " ".join(lines[index : index + 2]) if lines[index].endswith(":") else lines[index]
    for line in reversed(lines):
        if line.startswith("error: "):
            return line.removeprefix("error: ")
    return None


def _line_after_frames(lines: Sequence[str]) -> int | None:
    """Where the last traceback names its exception, which need not be called an error: torch's TritonMissing is not."""
    starts = [index for index, line in enumerate(lines) if line.startswith("Traceback (most recent call last)")]
    after = range(starts[-1] + 1, len(lines)) if starts else range(0)
    return next((index for index in after if lines[index] and not lines[index][0].isspace()), None)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


#: Until then a run is not said to have come anywhere, where others say how it ends.
_SOON_S = 10.0
_PROGRESS = re.compile(r"\S.* \d+/\d+\s*\Z")


class Log:
    """A child's output: everything to the file, progress to stderr, the end kept for the status.

    Where `brief` is set only what takes long says how far it has come: whoever watches is told the rest by others.
    """

    def __init__(self, path: Path, label: str) -> None:
        self._file = path.open("wb")
        self._label = label
        self.brief = bool(os.environ.get(BRIEF))
        self._says_from = time.monotonic() + (_SOON_S if self.brief else 0)
        self._rest = b""
        self._lines: deque[str] = deque(maxlen=400)

    @property
    def lines(self) -> list[str]:
        """The last lines, without line ends."""
        return list(self._lines)

    def write(self, content: bytes) -> None:
        """Take some more of the output."""
        self._file.write(content)
        self._file.flush()
        *lines, self._rest = (self._rest + content).split(b"\n")
        for line in lines:
            self._line(line)

    def close(self) -> None:
        """Take what is left without a line end."""
        if self._rest:
            self._line(self._rest)
        self._file.close()

    def say(self, text: str) -> None:
        """One line of progress for whoever watches."""
        say(self._label, text)

    def _line(self, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip("\r")
        if text.strip():
            self._lines.append(text)
        if _PROGRESS.fullmatch(text) and time.monotonic() >= self._says_from:
            self.say(text.strip())


def say(label: str, text: str) -> None:
    """One line of progress on stderr."""
    sys.stderr.write(printable(f"{label}: {text}\n"))
    sys.stderr.flush()
