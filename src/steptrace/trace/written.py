"""Writes PyTorch's trace atomically: checks that it is complete, compresses it, and renames it."""

import gzip
import shutil
from pathlib import Path
from typing import Any, Final

from steptrace.files import temporary_file, working_directory
from steptrace.trace.mend import mend

#: Bytes at the end of a trace within which its last event lies.
_END: Final = 1 << 16


def export(profiler: Any, trace: Path, *, unfinished: str | None = None) -> None:
    """Write the recording of a `torch.profiler.profile` to `trace` (.json.gz), atomically.

    Raises:
        OSError, RuntimeError: it cannot be written.
    """
    plain = temporary_file(trace.parent)  # not a trace's name, for readers of the folder
    written_first = plain.with_name(f"{plain.name}.tmp")  # PyTorch's own; it stays on a full disk
    try:
        profiler.export_chrome_trace(str(plain))
        if written_first.exists():
            # PyTorch takes a backslash in the path for a slash when it renames the file.
            written_first.replace(plain)
        if '"' in f"{working_directory()}{plain}":
            # Nor does it escape quotation marks, and other tools read only valid JSON.
            plain.write_bytes(mend(plain.read_bytes())[0])
        put_in_place(plain, trace, unfinished=unfinished)
    finally:
        plain.unlink(missing_ok=True)
        written_first.unlink(missing_ok=True)


def put_in_place(plain: Path, trace: Path, *, unfinished: str | None = None) -> None:
    """Compress the trace `plain` to `trace` (.json.gz), beside it; `plain` stays.

    PyTorch compresses, too, but through a file in TMPDIR, which may be small, and on a full disk it writes half a trace
    without an error.

    Args:
        plain: PyTorch's trace; each member of an event has a line of its own.
        trace: the file to write.
        unfinished: the label of an unfinished step at the end of the recording, which must not count as a step.

    Raises:
        OSError: the end of the trace is missing, or it cannot be written.
    """
    _check_whole(plain)
    compressed = temporary_file(plain.parent)
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
    # The text after the events differs between versions; all of them close the list of events.
    _, mark, rest = end.rpartition(b'"Record Window End"')
    closed = b'"traceName"' in end or (mark and b"]" in rest)
    if not closed or not end.endswith(b"}"):
        raise OSError(f"PyTorch wrote {trace} only in part: is the disk full?")


def _compress(plain: Path, compressed: Path, unfinished: str | None) -> None:
    with plain.open("rb") as source, gzip.open(compressed, "wb", compresslevel=6) as target:
        if unfinished is None:
            shutil.copyfileobj(source, target, 1 << 20)
        else:
            label = f'"{unfinished}"'.encode()
            mark = label.replace(b"ProfilerStep", b"Unfinished step ")
            target.writelines(line.replace(label, mark) for line in source)
