"""Trace files: which ones some paths name."""

import codecs
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from steptrace.errors import TraceError
from steptrace.trace.decode import path_text
from steptrace.trace.text import after_comments
from steptrace.trace.unpack import EVENTS_KEY, SEARCHED, UNREADABLE, opened

#: The first key of an excerpt's file. Its value says which step of which trace the excerpt holds.
EXCERPT_KEY: Final = "steptraceExcerpt"
#: The begin of an event, up to its phase.
_FIRST_EVENT: Final = re.compile(rb'\{[^{}]*"ph"\s*:\s*"[A-Za-z]"')
#: How JSON begins, apart from white space.
_JSON_BEGINS: Final = re.compile(rb'\s*(?:[\[{"]|-?\d|true|false|null|NaN|-?Infinity)')
#: Characters that JSON has neither in nor between its texts.
_NOT_IN_JSON: Final = re.compile(rb"[\0-\x08\x0b\x0c\x0e-\x1f]")
#: How many bytes tell whether a file holds text.
_TEXT: Final = 1 << 12
#: Bytes at a time: of a gzip file that was cut off, what stands before the cut can be read.
_PIECE: Final = 1 << 14


def find_traces(paths: Iterable[str | Path]) -> list[Path]:
    """The trace files that files and folders stand for, in the order of the paths; those of a folder by name.

    A folder stands for its `.json` and `.json.gz` files that hold `traceEvents` near their beginning, begin with an
    event, or have "trace" in their name; and for those of which nothing can be read, or that are not JSON. Excerpts of
    traces are passed over, unless nothing else in it can be read. Sub-folders are not searched. Each file is listed
    once.

    Raises:
        TraceError: a path does not exist; a folder holds no trace; or it holds only excerpts, and a sub-folder holds
            traces.
    """
    files: dict[Path, Path] = {}
    for path in map(Path, paths):
        if _kind(path) == "folder":
            traces = _inside(path)
            whole = [p for p in traces if not is_excerpt(p)]
            if len(whole) < len(traces) and not any(map(_is_readable, whole)):
                whole = []  # files of which nothing can be read do not stand for the excerpts beside them
            below = None if whole else _below(path)
            if not traces or below is not None:
                raise TraceError(
                    "a folder with excerpts of traces only" if traces else "a folder without traces",
                    where=path,
                    expected="whole traces" if traces else 'files ending in .json or .json.gz that hold "traceEvents"',
                    next_step=below,
                )
            files.update({p.resolve(): p for p in whole or traces if p.resolve() not in files})
        elif _kind(path) == "other":
            raise TraceError(
                "is a pipe or a device, not a file",
                where=path_text(path),
                expected="a trace file, which is read more than once",
                next_step="write it to a file first",
            )
        elif _kind(path) == "file":
            files.setdefault(path.resolve(), path)
        else:
            raise TraceError(
                "there is no such file or folder", where=path_text(path), expected="a trace file, or a folder of them"
            )
    return list(files.values())


def has_whole_traces(folder: Path) -> bool:
    """Whether a folder holds a trace that is no excerpt."""
    return any(not is_excerpt(path) for path in _inside(folder))


def _kind(path: Path) -> str | None:
    """`folder`, `file`, or `other` (such as a pipe); None if there is nothing, or if the system rejects the name."""
    try:
        if path.is_dir():
            return "folder"
        if path.is_file():
            return "file"
        if path.exists():
            return "other"
        return None
    except (OSError, ValueError):
        return None


def _inside(folder: Path) -> list[Path]:
    """The trace files of a folder by name, without hidden ones, such as the list of what a command wrote."""
    names = sorted(p for p in folder.iterdir() if p.name.endswith((".json", ".json.gz")) and p.is_file())
    return [p for p in names if not p.name.startswith(".") and looks_like_trace(p)]


def _below(path: Path) -> str | None:
    """The next step for a folder with traces only in its sub-folders, such as one of several captures."""
    try:
        folders = [p for p in sorted(path.iterdir()) if p.is_dir() and not all(map(is_excerpt, _inside(p)))]
    except OSError:
        return None
    if not folders:
        return None
    more = f" ({len(folders)} folders in all)" if len(folders) > 1 else ""
    return f"name a sub-folder, as in {folders[-1]}{more}"


def looks_like_trace(path: Path) -> bool:
    """Whether a file begins with an event, its first megabyte holds `traceEvents`, or its name holds "trace".

    A file that is empty, damaged from its start, or not JSON may have been a trace: it counts as one, so that it is
    named.
    """
    if "trace" in path.name.lower():
        return True
    text = after_comments(_beginning(path))
    first = after_comments(text.removeprefix(b"["))
    return bool(EVENTS_KEY.search(text) or _FIRST_EVENT.match(first)) or not _begins_as_json(text)


def _is_readable(path: Path) -> bool:
    text = after_comments(_beginning(path))
    return bool(EVENTS_KEY.search(text)) or _begins_as_json(text)


def _begins_as_json(text: bytes) -> bool:
    """Whether a text may be JSON, by its beginning: random bytes, a web page and nothing at all are not."""
    return bool(_JSON_BEGINS.match(text)) and _NOT_IN_JSON.search(text[:_TEXT]) is None


def _beginning(path: Path) -> bytes:
    """The first megabyte of a file, unpacked, as far as it can be read; empty of a file without anything."""
    text = b""
    try:
        with opened(path) as file:
            while len(text) < SEARCHED and (more := file.read(_PIECE)):
                text += more
    except UNREADABLE:
        pass
    return text.removeprefix(codecs.BOM_UTF8) if text.strip(b"\0") else b""


def is_excerpt(path: Path) -> bool:
    """Whether a file is an excerpt that steptrace wrote: its first key is `EXCERPT_KEY`."""
    begin = b'{"%s":' % EXCERPT_KEY.encode()
    try:
        with opened(path) as file:
            return file.read(len(begin)) == begin
    except UNREADABLE:
        return False
