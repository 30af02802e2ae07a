"""Runs one check for every variant of a study. Each variant has a child process, so a crash affects one variant only.

    python -m steptrace.workflow.checks equivalence|prediction results/STUDY

The variants and their keys are those of the plan's task `results/STUDY/CHECK`, whose record is CHECK.json. A variant
that was checked successfully under the same key is skipped. The children are forks of this process, so PyTorch is
imported once. In a study of commands each child is a new process instead.
"""

import argparse
import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from steptrace.config.variant_kind import VariantKind, kind_of
from steptrace.config.yaml_file import read_yaml
from steptrace.documents.base import read
from steptrace.documents.run import PlannedStudy
from steptrace.errors import exit_with
from steptrace.files import scratch_folder
from steptrace.format import duration, printable
from steptrace.jobs.checks import SHARED_VARIABLE, equivalence_job, prediction_job
from steptrace.jobs.forked import preload
from steptrace.jobs.supervise import Job, supervise
from steptrace.run_folder import finished_check
from steptrace.tasks import read_task
from steptrace.workflow.made import write_record


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(description="Check every variant of a study.")
    parser.add_argument("what", choices=("equivalence", "prediction"))
    parser.add_argument("study", type=Path, help="results/STUDY")
    parser.add_argument("--gpus", type=int, default=0, help="GPUs for each child")
    parser.add_argument("--at-once", type=int, default=1, help="most children at the same time")
    parser.add_argument("--for-gpu", help="the GPU that predictions are for, as the programs see it")
    parser.add_argument("--timeout", type=float, default=0, help="most seconds for each child; 0: no limit")
    options = parser.parse_args(arguments)
    study = read(options.study / "study.json", PlannedStudy)
    references = {variant.name: variant.reference for variant in study.variants if variant.reference is not None}
    task = read_task(f"{options.study.as_posix()}/{options.what}")
    jobs: list[Job] = []
    kind: VariantKind | None = None
    for variant, key in (task.parts or {}).items():
        folder = options.study / variant
        status = finished_check(folder, options.what)
        if status is not None and status.key == key:
            continue
        kind = kind_of(read_yaml(folder / "config.yaml"))
        if options.what == "equivalence":
            jobs.append(equivalence_job(folder, kind, references[variant], gpus=options.gpus, key=key))
        else:
            named_gpu = [] if options.for_gpu is None else ["--gpu", options.for_gpu]
            jobs.append(prediction_job(folder, kind, key=key, options=named_gpu))
    os.environ["OMP_NUM_THREADS"] = str(max(1, (os.cpu_count() or 1) // options.at_once))
    with ExitStack() as stack:
        if kind is not None and kind.is_ours:
            preload(jobs[0].command[2])
        elif kind is not None:
            # The checks share the outputs of the baseline. Only for new processes: a fork that inherits the folder
            # would remove it when it ends.
            os.environ[SHARED_VARIABLE] = stack.enter_context(scratch_folder())
        for job, status in supervise(jobs, at_once=options.at_once, timeout_s=options.timeout or None):
            name = job.out.relative_to(options.study.parent).as_posix()
            ended = f"{name}: {status.status} after {duration(status.wall_s * 1e9)} {status.error or ''}"
            print(printable(ended), flush=True)  # noqa: T201
    write_record(task)
    return 0


if __name__ == "__main__":
    exit_with(main)
