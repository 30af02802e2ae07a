"""A trace as PyTorch has just written it: checked for its end, compressed, and put into its place in one step."""

import gzip
import os
import shutil
from pathlib import Path
from typing import Any, Final

#: Bytes at the end of a trace within which its last event lies.
_END: Final = 1 << 16


def export(profiler: Any, trace: Path, *, unfinished: str | None = None) -> None:
    """Write what a `torch.profiler.profile` has recorded to `trace` (.json.gz), whole and in one step.

    Raises:
        OSError, RuntimeError: it cannot be written.
    """
    plain = trace.with_name(f".{os.getpid()}.{trace.name}.part")  # not named as a trace, for whoever reads the folder
    try:
        profiler.export_chrome_trace(str(plain))
        put_in_place(plain, trace, unfinished=unfinished)
    finally:
        plain.unlink(missing_ok=True)
        plain.with_name(f"{plain.name}.tmp").unlink(missing_ok=True)  # what PyTorch leaves where it cannot write all


def put_in_place(plain: Path, trace: Path, *, unfinished: str | None = None) -> None:
    """Make of the uncompressed trace `plain` the file `trace` (.json.gz), beside it; `plain` is left where it is.

    PyTorch would compress as well, but through a file in TMPDIR, which may be small, and a disk that fills up leaves
    half a trace without a word.

    Args:
        plain: what PyTorch wrote; each member of an event has a line of its own.
        trace: where it goes.
        unfinished: the label of a step that the recording ended in, which must not count as a step.

    Raises:
        OSError: the end of the trace is missing, or it cannot be written.
    """
    _check_whole(plain)
    compressed = plain.with_name(f".{os.getpid()}.{trace.name}.gz.part")
    try:
        _compress(plain, compressed, unfinished)
        compressed.replace(trace)
    finally:
        compressed.unlink(missing_ok=True)


def _check_whole(trace: Path) -> None:
    end = b""
    if trace.exists():
        with trace.open("rb") as file:
            file.seek(max(trace.stat().st_size - _END, 0))
            end = file.read().rstrip()
    # What follows the events differs between versions; their list is closed in all of them.
    _, mark, rest = end.rpartition(b'"Record Window End"')
    closed = b'"traceName"' in end or (mark and b"]" in rest)
    if not closed or not end.endswith(b"}"):
        raise OSError(f"PyTorch has not written all of {trace}: is the disk full?")


def _compress(plain: Path, compressed: Path, unfinished: str | None) -> None:
    with plain.open("rb") as source, gzip.open(compressed, "wb", compresslevel=6) as target:
        if unfinished is None:
            shutil.copyfileobj(source, target, 1 << 20)
        else:
            label = f'"{unfinished}"'.encode()
            mark = label.replace(b"ProfilerStep", b"Unfinished step ")
            target.writelines(line.replace(label, mark) for line in source)
