"""Finds the trace files behind paths."""

from collections.abc import Iterable
from pathlib import Path

from steptrace.errors import TraceError
from steptrace.trace.bounds import path_text
from steptrace.trace.stream import looks_like_trace


def find_traces(paths: Iterable[str | Path]) -> list[Path]:
    """The trace files behind files and folders, in the order given; those of a folder by name.

    A folder's `.json` and `.json.gz` files count if they hold `traceEvents` near their beginning or have "trace" in
    their name; sub-folders are not searched. Each file is listed once.

    Raises:
        TraceError: a path does not exist, or a folder holds no trace.
    """
    files: dict[Path, Path] = {}
    for path in map(Path, paths):
        if _kind(path) == "folder":
            inside = sorted(p for p in path.iterdir() if p.name.endswith((".json", ".json.gz")) and p.is_file())
            traces = [p for p in inside if looks_like_trace(p)]
            if not traces:
                raise TraceError(
                    "a folder without traces",
                    where=path,
                    expected='files ending in .json or .json.gz that hold "traceEvents"',
                    next_step=_below(path),
                )
            files.update({p.resolve(): p for p in traces if p.resolve() not in files})
        elif _kind(path) == "file":
            files.setdefault(path.resolve(), path)
        else:
            raise TraceError(
                "there is no such file or folder", where=path_text(path), expected="a trace file, or a folder of them"
            )
    return list(files.values())


def _kind(path: Path) -> str | None:
    """`folder`, `file` or None, also for a name that the system rejects."""
    try:
        return "folder" if path.is_dir() else "file" if path.exists() else None
    except (OSError, ValueError):
        return None


def _below(path: Path) -> str | None:
    """The next step for a folder with traces only in its sub-folders, such as one of several captures."""
    files = (file for end in (".json", ".json.gz") for file in sorted(path.glob(f"*/*{end}")))
    folders = sorted({str(file.parent) for file in files if looks_like_trace(file)})
    if not folders:
        return None
    more = f" ({len(folders)} folders in all)" if len(folders) > 1 else ""
    return f"name a sub-folder, as in {folders[-1]}{more}"
