"""Reads the file of a memory snapshot.

The file is a pickle, which can name any function to be called while it is read. So nothing is ever looked up: a pickle
that names a function or class is refused, except two names that PyTorch's C++ writer puts around plain values, which
are replaced by functions of this module. What is read is then checked against the fields that are used.
"""

import contextlib
import os
import pickle
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import msgspec
import psutil

from steptrace.errors import SteptraceError
from steptrace.files import open_file
from steptrace.format import clipped

#: Reading takes some multiple of the file's size: a small file that asks for far more is an attack, or damaged.
_MEMORY_PER_BYTE: Final = 40
_LEAST_MEMORY: Final = 1 << 30
_EXPECTED: Final = "a file of torch.cuda.memory._dump_snapshot()"
#: A pickle holds integers of any length; those of the allocator have 64 bits.
_MOST: Final = (1 << 63) - 1
_Integer = Annotated[int, msgspec.Meta(ge=-_MOST, le=_MOST)]
_Bytes = Annotated[int, msgspec.Meta(ge=0, le=_MOST)]


class SnapshotError(SteptraceError):
    """A memory snapshot cannot be read."""


class SnapshotFrame(NamedTuple):
    """A frame of a stack: of Python, or of C++."""

    file: str
    line: int
    function: str


class Block(msgspec.Struct):
    """A block of the allocator. `frames` is checked when it is used; releases of PyTorch before 2.1 have `history`."""

    size: _Bytes
    state: str
    address: int | None = None
    requested_size: _Bytes | None = None
    frames: Any = None
    history: Any = None


class Segment(msgspec.Struct):
    """Memory that the allocator got from the GPU."""

    address: int
    total_size: _Bytes
    blocks: list[Block]
    device: _Integer = 0


class MemoryEvent(msgspec.Struct):
    """An allocation, a release, or something else that the allocator did."""

    action: str
    size: _Bytes = 0
    addr: int | None = None
    frames: Any = None
    time_us: _Integer | None = None
    device_free: _Integer | None = None


class Annotation(msgspec.Struct):
    """A `record_function` label begins (stage START) or ends."""

    stage: str
    name: str
    device: _Integer = 0
    time_us: _Integer = 0


class Content(msgspec.Struct):
    """What is used of a snapshot."""

    segments: list[Segment]
    device_traces: list[list[MemoryEvent]] = []
    external_annotations: list[Annotation] = []
    allocator_settings: dict[str, Any] = {}


class Snapshot(NamedTuple):
    """A file with its content."""

    path: str
    sha256: str
    content: Content


def read_snapshot(path: Path) -> Snapshot:
    """Read a snapshot.

    Raises:
        SnapshotError: the file is missing, damaged, names code to be called, or is no snapshot.
    """
    try:
        with open_file(path) as file, _bounded(path.stat().st_size):
            value = _Reader(file).load()
            file.seek(0)
            digest = sha256()
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    except SnapshotError as error:
        raise SnapshotError(error.what, where=path, expected=error.expected, next_step=error.next_step) from None
    except OSError as error:
        raise SnapshotError(f"cannot be read ({error.strerror or error})", where=path) from error
    except MemoryError as error:
        raise SnapshotError("needs far more memory than its size explains", where=path, expected=_EXPECTED) from error
    except Exception as error:  # a damaged pickle raises errors of many kinds
        reason = clipped(f"{type(error).__name__}: {error}", 120)
        raise SnapshotError(f"is no whole pickle ({reason})", where=path, expected=_EXPECTED) from error
    if isinstance(value, list):  # PyTorch 1.12 and 1.13
        value = {"segments": value}
    try:
        content = msgspec.convert(value, Content)
    except (msgspec.ValidationError, RecursionError) as error:
        raise SnapshotError(
            f"is a pickle, but no memory snapshot ({error})",
            where=path,
            expected=_EXPECTED,
            next_step="steptrace analyze reads traces (.json, .json.gz) and memory snapshots",
        ) from error
    return Snapshot(os.fspath(path), digest.hexdigest(), content)


def frames_of(value: Any) -> tuple[SnapshotFrame, ...]:
    """The frames of a stack, innermost first.

    Raises:
        SnapshotError: they are no list of frames.
    """
    try:
        frames = tuple(
            SnapshotFrame(str(frame["filename"]), int(frame["line"]), str(frame["name"])) for frame in value or ()
        )
    except (TypeError, KeyError, ValueError, OverflowError) as error:
        raise SnapshotError("holds a stack that is no list of frames", expected=_EXPECTED) from error
    if any(abs(frame.line) > _MOST for frame in frames):
        raise SnapshotError("holds a line number that no file has", expected=_EXPECTED)
    return frames


class _Reader(pickle.Unpickler):
    """Reads plain values; a function or class that the file names is never looked up."""

    def find_class(self, module_name: str, global_name: str) -> Callable[..., Any]:
        name = f"{module_name}.{global_name}"
        if name in _PLAIN:
            return _PLAIN[name]
        raise SnapshotError(
            f"is a pickle that names {clipped(name, 80)} to be called: it is not read, since that could run any code",
            expected=f"{_EXPECTED}, which holds plain values alone",
        )

    def persistent_load(self, pid: Any) -> Any:  # noqa: ARG002 - pickle's own signature
        raise SnapshotError("is a pickle with references to outside of it", expected=_EXPECTED)


def _value_alone(value: Any, *_: Any) -> Any:
    return value


#: What PyTorch's C++ writer of pickles puts around lists and dictionaries, to keep the types of their values.
_PLAIN: Final[dict[str, Callable[..., Any]]] = {
    "torch.jit._pickle.restore_type_tag": _value_alone,
    "torch.jit._pickle.build_intlist": _value_alone,
}


@contextlib.contextmanager
def _bounded(size: int) -> Iterator[None]:
    """Let this process have only so much more memory as reading a file of this size can need.

    A few bytes of a pickle can ask for any amount. Systems without such a limit read without one.
    """
    try:
        import resource
    except ImportError:
        yield
        return
    now = psutil.Process().memory_info().vms
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = now + _LEAST_MEMORY + _MEMORY_PER_BYTE * size
    ends = [limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY]
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_AS, (min([wanted, *ends]), hard))
    try:
        yield
    finally:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
