"""Which compiled library belongs to these sources and this torch, where it is looked for, and what runs without it.

Looked for in: the file or folder that the environment variable STEPTRACE_GIOU_LIBRARY names, else `ext/giou/build`. In
a folder only a library whose name carries the digest of the present sources and of the present torch version is taken,
so a stale build is never loaded by accident; a file that is named outright is taken as it is.
"""

import hashlib
import json
import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import torch

Kind = Literal["cuda", "cpu"]

VARIABLE: Final = "STEPTRACE_GIOU_LIBRARY"
HOME: Final = Path(__file__).resolve().parents[2]
SOURCES: Final = HOME / "csrc"
DEFAULT_FOLDER: Final = HOME / "build"
NAMESPACE: Final = "steptrace_giou"


class FallbackWarning(UserWarning):
    """The Python twin runs where the compiled operator was meant to."""


@dataclass(frozen=True)
class Implementation:
    """What runs when a function of `ops` is called.

    Attributes:
        name: "library" for the compiled operators, "reference" for the Python twin.
        devices: the device types that the library serves; empty for the twin.
        path: the library, None for the twin.
        reason: one sentence: what was loaded, or why nothing was.
    """

    name: Literal["library", "reference"]
    devices: frozenset[str]
    path: Path | None
    reason: str

    def require(self, device_type: str) -> None:
        """Raise RuntimeError unless the compiled operators serve `device_type` ("cpu", "cuda")."""
        if device_type not in self.devices:
            raise RuntimeError(
                f"giou: got {self.name} ({self.reason}), expected a library for {device_type}; "
                f"build one with `{build_command(device_type)}`"
            )


def build_command(device_type: str = "cpu") -> str:
    """The command that would build the missing library."""
    cuda = "on" if device_type == "cuda" else "auto"
    return f"PYTHONPATH={HOME / 'python'} python -m steptrace_giou.build --cuda {cuda}"


def digest() -> str:
    """16 hex digits over every byte the library is made of, the recipe included, and the torch version."""
    total = hashlib.sha256(torch.__version__.encode())
    for path in [*sorted(SOURCES.iterdir()), Path(__file__).with_name("build.py")]:
        total.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return total.hexdigest()[:16]


def file_name(kind: Kind) -> str:
    """The library's name in any folder."""
    return f"steptrace_giou-{digest()}-{kind}.so"


def find(where: Path) -> Path | None:
    """The library at `where`, a file or a folder; in a folder one with CUDA goes first. None if there is none."""
    candidates = [where / file_name("cuda"), where / file_name("cpu")] if where.is_dir() else [where]
    return next((path for path in candidates if path.is_file()), None)


def recorded_checksum(library: Path) -> str | None:
    """The SHA-256 that build.json beside a library has of it; None where there is none."""
    try:
        record = json.loads((library.parent / "build.json").read_text(encoding="utf-8"))
        return str(record["sha256"]) if record["library"] == library.name else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def checksum(library: Path) -> str:
    """The SHA-256 of a library as it is."""
    with library.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def load() -> Implementation:
    """Load the library that belongs here, or warn with FallbackWarning and name the twin. For once per process."""
    where = Path(os.environ.get(VARIABLE) or DEFAULT_FOLDER)
    path = find(where)
    if path is None:
        return _fall_back(f"no library of digest {digest()} for torch {torch.__version__} at {where}")
    # A library that is cut off would end the process by a signal.
    if recorded_checksum(path) not in (None, checksum(path)):
        return _fall_back(f"{path} is damaged: remove it and build it again")
    try:
        torch.ops.load_library(str(path))  # type: ignore[no-untyped-call]
    except OSError as error:
        return _fall_back(f"{path} cannot be loaded: {error}")
    devices = {kind for kind, key in (("cpu", "CPU"), ("cuda", "CUDA")) if _has_kernel(key)}
    return Implementation("library", frozenset(devices), path, f"loaded {path}")


def _has_kernel(key: str) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(f"{NAMESPACE}::giou_loss", key))


def _fall_back(reason: str) -> Implementation:
    warnings.warn(
        f"steptrace_giou runs its slow Python twin: {reason}. Build the library with `{build_command()}`, "
        f"or name one with {VARIABLE}.",
        FallbackWarning,
        stacklevel=3,
    )
    return Implementation("reference", frozenset(), None, reason)
