"""`snakemake --scheduler steptrace`: jobs strictly by their rules' priorities.

Snakemake's own scheduler starts whatever fits: while a training waits for all cores, small jobs of every study to come
overtake it one after the other, as one of them always ends before the others. Here none overtakes a job of a higher
priority that has yet to be started. Jobs of one priority start in the order of their numbers, which is that of the
variants in their study: Snakemake hands over a set, but numbers jobs in the order in which `rule all` asks for files.
"""

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from snakemake_interface_scheduler_plugins.base import SchedulerBase

#: Bytes that must be free for Python to write its bytecode.
_ROOM: Final = 32 * 2**20
# Of our modules Snakemake imports this one first. On a full disk Python 3.11, 3.12.0-7 and 3.13.0 leave a part of a
# .pyc behind (python/cpython#126606), which stops every later start: then none is written, here and in all processes.
if shutil.disk_usage(os.path.dirname(__file__)).free < _ROOM:  # noqa: PTH120 - pathlib is not imported for its sake
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"


class Scheduler(SchedulerBase):
    """What Snakemake looks for in a scheduler plugin."""

    def select_jobs(
        self,
        selectable_jobs: Sequence[Any],
        remaining_jobs: Sequence[Any],  # noqa: ARG002 - the interface's
        available_resources: Mapping[str, Any],
        input_sizes: Mapping[Any, int],  # noqa: ARG002
    ) -> Sequence[Any]:
        """The jobs to be started now."""
        free = dict(available_resources)
        chosen: list[Any] = []
        waits = None
        for job in sorted(selectable_jobs, key=lambda job: (-job.priority, _number(job))):
            needs = {name: job.scheduler_resources.get(name, 0) for name in free}
            if waits is not None and job.priority < waits:
                break
            if all(needs[name] <= free[name] for name in free):
                free = {name: free[name] - needs[name] for name in free}
                chosen.append(job)
            else:
                waits = job.priority
        return chosen


def _number(job: Any) -> int:
    """Of a job, or of the first one of a group."""
    return int(min(one.jobid for one in job.jobs) if job.is_group() else job.jobid)
