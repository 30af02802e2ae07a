"""Result files that cannot be read count as not there: they are set aside as `NAME.corrupt`, and so made again.

Asked once, before a workflow is planned. What makes a file again is the output of a rule beside it: where
`steps.parquet` cannot be read, the run's status.json is set aside, too, and Snakemake repeats the run.
"""

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from steptrace.config.cache import write_if_changed
from steptrace.documents import base as documents
from steptrace.documents.base import Document
from steptrace.documents.comparison import Comparison
from steptrace.documents.run import Communication, RunMemory, RunRecord, Status
from steptrace.documents.verdict import Verdict
from steptrace.errors import RecordError
from steptrace.record import COMMUNICATION_FILE, MEMORY_FILE, RUN_FILE, STATUS_FILE
from steptrace.schema import check_table_version
from steptrace.standing import PARTIAL, STUDY, WHOLE

SUFFIX: Final = ".corrupt"
_SUMMARY: Final = "summary.json"
_TABLES: Final = "tables"
_RANKS: Final = "ranks"
#: Not results: caches mend themselves, and a failure's line that cannot be read is one failure less.
_NOT_RESULTS: Final = (".cache", "failures", ".snakemake")
_GZIP: Final = b"\x1f\x8b"


def set_aside_unreadable(workdir: Path) -> list[str]:
    """Rename every file below results/ that cannot be read, and what has to go for it to be made again.

    A file whose size and time of change are those of the last look is not read again.

    Returns:
        One sentence for each file that cannot be read.
    """
    results, said = workdir / "results", []
    cache = results / ".cache" / "readable.json"
    known = _remembered(cache)
    readable = {}
    for path, stamp in _files(results):
        place = path.relative_to(results)
        name = str(place)
        reason = None if known.get(name) == stamp else _problem(path)
        if reason is None:
            readable[name] = stamp
            continue
        whole = _made_with(place)
        for gone in (*_made_from(place), whole):  # the file last: killed in between, it is found again
            if (results / gone).exists():
                _set_aside(results / gone)
                readable.pop(str(gone), None)
        said.append(f"results/{name} cannot be read ({reason}): set aside as {whole.name}{SUFFIX}, to be made again")
    if readable or known:
        write_if_changed(cache, json.dumps(readable))
    return said


def _set_aside(path: Path) -> None:
    aside = path.with_name(path.name + SUFFIX)
    if aside.is_dir():  # a rank of an earlier time
        shutil.rmtree(aside)
    path.replace(aside)


def _files(results: Path) -> Iterator[tuple[Path, str]]:
    """Every file that is checked, with what changes when it does."""
    for folder, below, names in os.walk(results):
        below[:] = sorted(name for name in below if name not in _NOT_RESULTS and not name.endswith(SUFFIX))
        for name in sorted(names):
            if name.endswith((".json", ".parquet", ".json.gz")) and not name.startswith("."):
                path = Path(folder, name)
                with contextlib.suppress(OSError):  # a link to nowhere is not there
                    found = path.stat()
                    yield path, f"{found.st_mtime_ns}-{found.st_size}"


def _problem(path: Path) -> str | None:
    """Why a file cannot be read, None if it can."""
    read = next((read for end, read in _READERS.items() if path.name.endswith(end)), _read_json)
    try:
        if not path.is_file():
            return "no regular file"
        read(path)
    except RecordError as error:
        return error.what
    except (OSError, ValueError) as error:  # msgspec's and pyarrow's errors are ValueErrors
        return " ".join(str(error).split())[:200]
    return None


def _read_json(path: Path) -> None:
    content = path.read_bytes()
    msgspec.json.decode(content.decode(), type=msgspec.Raw)


def _read_parquet(path: Path) -> None:
    from pyarrow.parquet import ParquetFile  # not where there is nothing new

    with ParquetFile(path) as file:
        check_table_version(file.schema_arrow.metadata or {}, path)
        for _ in file.iter_batches():
            pass


def _read_gzip(path: Path) -> None:
    # Not whole: a trace that ends too early is a warning of the run's summary.
    with path.open("rb") as file:
        if file.read(2) != _GZIP:
            raise ValueError("no gzip file")


def _document(kind: type[Document]) -> Callable[[Path], object]:
    return lambda path: documents.read(path, kind)


#: By the end of the name; all other JSON has to be JSON.
_READERS: Final[dict[str, Callable[[Path], object]]] = {
    STATUS_FILE: _document(Status),
    RUN_FILE: _document(RunRecord),
    COMMUNICATION_FILE: _document(Communication),
    MEMORY_FILE: _document(RunMemory),
    WHOLE: _document(Comparison),
    PARTIAL: _document(Comparison),
    "verdict.json": _document(Verdict),
    ".parquet": _read_parquet,
    ".json.gz": _read_gzip,
}


def _made_with(path: Path) -> Path:
    """What is made in one: of a path below results/ the path itself, or the folder of the rank that it belongs to."""
    return next((folder for folder in path.parents if _is_part(folder.parent, _RANKS)), path)


def _is_part(folder: Path, name: str) -> bool:
    """Whether it is that folder of a run or an imported trace: a study, a variant or a trace may be called the same."""
    return folder.name == name and len(folder.parts) > 2


def _made_from(path: Path) -> list[Path]:
    """The outputs of rules that have to be gone for the file to be made again; all paths are below results/."""
    if tables := [folder for folder in path.parents if _is_part(folder, _TABLES)]:
        return [tables[-1].parent / _SUMMARY]
    if _made_with(path) != path:
        return []
    if path.name in (STATUS_FILE, _SUMMARY, STUDY, WHOLE, PARTIAL):
        return []
    if path.name == "prediction.json":
        return [path.parent / "prediction" / STATUS_FILE]
    return [path.parent / STATUS_FILE]


def _remembered(cache: Path) -> dict[str, str]:
    try:
        return msgspec.json.decode(cache.read_bytes(), type=dict[str, str])
    except (OSError, msgspec.DecodeError):
        return {}
