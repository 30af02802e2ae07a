"""Files that processes of one user exchange: a folder that only this user can enter, read and written with care.

Needs the standard library only, since a training imports it.
"""

import os
import stat
from pathlib import Path

from steptrace.errors import SteptraceError


def user_folder() -> Path:
    """This user's folder for such files, the same in every shell and job, made if missing.

    Neither TMPDIR nor XDG_RUNTIME_DIR is used: they differ between a login shell, a cluster job and a service, and the
    latter is removed at logout, which a training outlives.

    Example:
        control = private_folder(user_folder() / "capture")

    Raises:
        SteptraceError: somebody else has made it, or may enter it.
    """
    return private_folder(Path(f"/tmp/steptrace-{os.geteuid()}"))


def private_folder(folder: Path) -> Path:
    """Make `folder` with mode 0700 if it is missing, and return it.

    Example:
        control = private_folder(Path("/shared/me/control"))

    Raises:
        SteptraceError: it is a link, another user's, open to others, or cannot be made.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise SteptraceError(f"folder cannot be made or opened ({error.strerror})", where=folder) from error
    found = os.fstat(descriptor)
    os.close(descriptor)
    if found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise SteptraceError(
            "folder is not private",
            where=folder,
            expected="a folder that you own, with mode 0700",
            next_step="chmod 700 it, or name another one",
        )
    return folder


def write_whole(path: Path, content: bytes) -> None:
    """Write a file in one step, so that nobody reads half of it; the folder must exist.

    Example:
        write_whole(folder / "answer.json", b'{"state": "recorded"}')
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read_own(path: Path) -> bytes | None:
    """A file's content; None unless it is a regular file of this user or root. Follows no link.

    Example:
        answer = read_own(folder / "answer.json")
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            found = os.fstat(descriptor)
            own = stat.S_ISREG(found.st_mode) and found.st_uid in (os.geteuid(), 0)
            return file.read() if own else None
    except OSError:
        return None
