"""The control folder: where a process that can be captured is found, asked and answered.

    ROOT/                    0700; /tmp/steptrace-capture-UID, or the folder named by STEPTRACE_CAPTURE_CONTROL
      HOST.PID/
        process.json         who it is
        state                three words of memory, seen by both sides: steps done, a request waits, recording
        request-ID.json      what is asked, written by `steptrace capture`, removed by the process that takes it
        answer-ID.json       what became of it

Nobody but the owner can enter the root, and a process takes only requests that its own user, or root, has written. All
files are JSON and checked as they are read. No signal is sent: one would end a process that does not handle it.
"""

import errno
import fcntl
import mmap
import os
import shutil
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from steptrace.capture import identity
from steptrace.capture.plan import FINAL, Answer, Process, Request
from steptrace.errors import CaptureError
from steptrace.record import write_json

ROOT_VARIABLE: Final = "STEPTRACE_CAPTURE_CONTROL"

#: The words of `state`.
STEPS, WANTED, RECORDING = range(3)
_WORDS: Final = 3
_BYTES: Final = 8 * _WORDS
_MEMORY: Final = "steptrace-capture"

#: How long the answers of an ended process are kept for a command that waits for them.
_KEPT_S: Final = 60.0

_Message = TypeVar("_Message")


def default_root() -> Path:
    """The root that is used unless another is named; the same in every shell of a user, whatever TMPDIR says."""
    named = os.environ.get(ROOT_VARIABLE)
    return Path(named) if named else Path(f"/tmp/steptrace-capture-{os.geteuid()}")


def private(root: Path) -> Path:
    """Make the root if it is missing, and return it.

    Raises:
        CaptureError: somebody else owns it or may enter it, or it cannot be made.
    """
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise CaptureError(f"control folder cannot be made ({error.strerror or error})", where=root) from error
    if not _is_private(root):
        raise CaptureError(
            "control folder is not yours alone",
            where=root,
            expected="a folder that you own, with mode 0700",
            next_step=f"chmod 700 it, or name another one in {ROOT_VARIABLE}",
        )
    return root


def _is_private(root: Path) -> bool:
    found = root.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077


class State:
    """The words of one process, and the file by which others get at them, if there is one.

    On one machine both sides map the same memory, so that a store is seen at once. It is no disk's: there a store waits
    while the page is being written out. `file` is then a link to it, which leads nowhere once the process has ended.

    A network's file must have one writer only: it is written by `publish`, and nobody but the process sets the word
    that a request waits.
    """

    def __init__(self, file: Path | None = None, *, shared: bool = False) -> None:
        self._file = file if shared else None
        self._memory: int | None = None
        self.words = memoryview(bytearray(_BYTES)).cast("Q")
        if file is None:
            return
        if shared or not hasattr(os, "memfd_create"):
            file.write_bytes(bytes(_BYTES))
        if not shared:
            self._map(file)

    def _map(self, file: Path) -> None:
        if hasattr(os, "memfd_create"):
            self._memory = os.memfd_create(_MEMORY)
            os.ftruncate(self._memory, _BYTES)
            file.symlink_to(f"/proc/{os.getpid()}/fd/{self._memory}")
            self.words = memoryview(mmap.mmap(self._memory, _BYTES)).cast("Q")
            return
        with file.open("rb+") as opened:
            self.words = memoryview(mmap.mmap(opened.fileno(), _BYTES)).cast("Q")

    def publish(self) -> None:
        """Let other machines see the words."""
        if self._file is not None:
            with self._file.open("rb+") as file:
                os.pwrite(file.fileno(), self.words.tobytes(), 0)

    def close(self) -> None:
        """Give up the memory; words that are still held stay valid."""
        if self._memory is not None:
            os.close(self._memory)
            self._memory = None


@dataclass(frozen=True)
class Entry:
    """The folder of one process."""

    path: Path

    @classmethod
    def of_this_process(cls, root: Path) -> "Entry":
        """This process's entry, made anew in `root`."""
        entry = cls(private(root) / f"{identity.host()}.{os.getpid()}")
        shutil.rmtree(entry.path, ignore_errors=True)  # of an ended process with the same number
        entry.path.mkdir(mode=0o700)
        return entry

    def lock(self) -> int:
        """Lock the folder, so that what clears old files out of /tmp leaves it alone; returns what to close."""
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        with suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        return descriptor

    def make_state(self, *, shared: bool) -> State:
        """The words of this process."""
        return State(self.path / "state", shared=shared)

    def word(self, number: int) -> int:
        """One of the words, as the process has last set it; `OSError` if it has ended, or runs another program now."""
        with self._words(os.O_RDONLY) as words:
            return int.from_bytes(os.pread(words, 8, 8 * number), sys.byteorder)

    @contextmanager
    def _words(self, how: int) -> Iterator[int]:
        """The words, opened. After an `exec` the process's number and its link stay, and lead to whatever file is
        open there now."""
        state = self.path / "state"
        descriptor = os.open(state, how | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        try:
            found = Path(f"/proc/self/fd/{descriptor}").readlink() if state.is_symlink() else None
            if found is not None and not str(found).startswith(f"/memfd:{_MEMORY}"):
                raise OSError(errno.ESTALE, "it runs another program now")
            yield descriptor
        finally:
            os.close(descriptor)

    def write_process(self, process: Process) -> None:
        """Say who this is; from now on the process is seen."""
        self._write(self.path / "process.json", process)

    def process(self) -> Process | None:
        """Whose folder this is; None if that is not said, or no longer."""
        return _read(self.path / "process.json", Process)

    def post(self, request: Request, *, shared: bool = False) -> None:
        """Ask the process; if its folder is `shared`, it looks by itself."""
        self._write(self._file("request", request.id), request)
        if shared:
            return
        # The file comes first: the process takes the word back and then looks for files.
        with self._words(os.O_RDWR) as words:
            os.pwrite(words, (1).to_bytes(8, sys.byteorder), 8 * WANTED)

    def withdraw(self, request: str) -> bool:
        """Take a request back; False if the process has already taken it."""
        try:
            self._file("request", request).unlink()
        except FileNotFoundError:
            return False
        return True

    def take(self) -> list[Request | str]:
        """The requests that wait, in the order they were made; only its id of one that is not valid.

        Their files are removed.
        """
        # A listing, since on a network the absence of a single file may be remembered for long.
        names = sorted(name for name in os.listdir(self.path) if name.startswith("request-"))  # noqa: PTH208
        taken: list[Request | str] = []
        for path in (self.path / name for name in names if name.endswith(".json")):
            request = _read(path, Request)
            path.unlink(missing_ok=True)
            taken.append(request or path.stem.removeprefix("request-"))
        return taken

    def answer(self, answer: Answer) -> None:
        """Say what became of a request."""
        self._write(self._file("answer", answer.id), answer)

    def read_answer(self, request: str) -> Answer | None:
        """What has become of a request so far; a final answer is removed."""
        answer = _read(self._file("answer", request), Answer)
        if answer is not None and answer.state in FINAL:
            self._file("answer", request).unlink(missing_ok=True)
        return answer

    def close(self) -> None:
        """Take this process off the list. Its answers stay for whoever waits for them."""
        for path in (self.path / "process.json", self.path / "state", *self.path.glob("request-*")):
            path.unlink(missing_ok=True)
        with suppress(OSError):
            self.path.rmdir()

    def _write(self, path: Path, message: Process | Request | Answer) -> None:
        """Write a message. A folder that has been cleared away is not made anew: it would not be its user's alone."""
        if not self.path.is_dir():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self.path))
        write_json(path, msgspec.to_builtins(message))

    def _file(self, kind: str, request: str) -> Path:
        return self.path / f"{kind}-{request}.json"


def entries(root: Path) -> Iterator[tuple[Entry, Process]]:
    """The processes that can be captured; what ended ones of this host have left behind is removed.

    Raises:
        CaptureError: the root is not its user's alone.
    """
    if not root.exists():
        return
    private(root)
    for path in sorted(root.iterdir()):
        entry = Entry(path)
        process = entry.process()
        host, _, pid = path.name.rpartition(".")
        if host == identity.host() and pid.isdecimal():
            started = identity.born(int(pid))
            if started is None or (process is not None and process.born not in (None, started)):
                _remove(path)
                continue
        if process is not None:
            yield entry, process


def _remove(path: Path) -> None:
    """Remove a folder whose process does not run, as far as can be seen: from within a container not all do."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return  # it runs, and holds the lock of `Entry.lock`
    except OSError:
        pass  # a file system without locks
    finally:
        os.close(descriptor)
    try:
        fresh = any(time.time() - answer.stat().st_mtime < _KEPT_S for answer in path.glob("answer-*"))
    except FileNotFoundError:  # just being read, or removed
        return
    if not fresh:
        shutil.rmtree(path, ignore_errors=True)


def _read(path: Path, kind: type[_Message]) -> _Message | None:
    """A message, if it is there, is well-formed and comes from this user or root."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid not in (os.geteuid(), 0):
            return None
        try:
            return msgspec.json.decode(file.read(), type=kind)
        except (OSError, msgspec.DecodeError, CaptureError):
            return None
