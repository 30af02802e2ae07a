"""Runs that have ended although the workflow that started them was killed before it knew: they are not run again.

Snakemake marks a job's outputs as incomplete while it runs, and repeats what is still marked. A run that ended well in
between, or went on on a cluster's node, is kept aside; its supervisor takes it back if it would run the very same.
"""

import base64
import binascii
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from steptrace.record import FINISHED_FILE, STATUS_FILE, ended_well

#: Where Snakemake marks outputs: a file a name, which is the output's path in base64.
_MARKS: Final = Path(".snakemake/incomplete")


def keep_finished(workdir: Path, *, forced: bool = False) -> int:
    """Set aside the status of each run that has ended well and is still marked as incomplete; return how many.

    To be called by the one workflow that may be at work there, before it has any job.

    Args:
        workdir: where the workflow works.
        forced: runs are to be repeated although they have ended: none is kept, nor what was kept before.
    """
    kept = 0
    for path in _marked(workdir / _MARKS):
        status = workdir / path
        if forced and status.name == STATUS_FILE:
            status.with_name(FINISHED_FILE).unlink(missing_ok=True)
        elif status.name == STATUS_FILE and status.is_file() and ended_well(status.parent):
            status.replace(status.with_name(FINISHED_FILE))
            kept += 1
    return kept


def _marked(marks: Path) -> Iterator[Path]:
    """The outputs that are marked; a long name is split into folders, whose names begin with @."""
    for mark in sorted(marks.rglob("*")) if marks.is_dir() else ():
        name = "".join(part.removeprefix("@") for part in mark.relative_to(marks).parts)
        try:
            path = Path(base64.urlsafe_b64decode(name).decode())
        except (binascii.Error, ValueError):
            continue
        if mark.is_file() and not path.is_absolute() and ".." not in path.parts:
            yield path
