"""A check of every variant of a study in one job, each variant in a child of its own: a crash is one variant's.

    python -m steptrace.workflow.checks equivalence|prediction results/STUDY

The variants and their keys are those of the plan's task `results/STUDY/CHECK`, whose record is CHECK.json. What has
ended well under the same key is not done again, so an edit of one variant costs one child. The children are forks of
this process, which imports PyTorch once for all of them; programs of a study of commands are started.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from steptrace.config.study import GPU_CONFIG
from steptrace.config.yaml_file import read_yaml
from steptrace.documents.base import read
from steptrace.documents.run import PlannedStudy
from steptrace.errors import exit_with
from steptrace.files import scratch_folder
from steptrace.format import printable
from steptrace.launch.main import SHARED_VARIABLE
from steptrace.record import finished
from steptrace.tasks import read_task
from steptrace.train.forked import preload
from steptrace.train.supervise import Job, supervise
from steptrace.workflow.made import write_record


def equivalence_job(variant: Path, reference: str, *, of_command: bool, gpus: int, key: str) -> Job:
    """Loss and gradient of a variant against the study's reference."""
    module = ["steptrace.launch.main", "equivalence"] if of_command else ["steptrace.equivalence.main"]
    out = variant / "equivalence"
    files = ["--config", str(variant / "config.yaml"), "--reference", str(variant.parent / reference)]
    command = [sys.executable, "-m", *module, *files, "--out", str(out)]
    return Job(out, command, gpus=gpus, key=key)


def prediction_job(variant: Path, *, of_command: bool, key: str = "", options: Sequence[str] = ()) -> Job:
    """The syncs of a variant on a GPU, as it would train there; `options` are those of `steptrace.predict.main`."""
    module = ["steptrace.launch.main", "predict"] if of_command else ["steptrace.predict.main"]
    files = ["--config", str(variant / GPU_CONFIG), "--out", str(variant)]
    command = [sys.executable, "-m", *module, *files, *options]
    return Job(variant / "prediction", command, log="predict.log", key=key)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(description="Check every variant of a study.")
    parser.add_argument("what", choices=("equivalence", "prediction"))
    parser.add_argument("study", type=Path, help="results/STUDY")
    parser.add_argument("--gpus", type=int, default=0, help="that a child takes")
    parser.add_argument("--at-once", type=int, default=1, help="children at once")
    parser.add_argument("--timeout", type=float, default=0, help="seconds for each child; 0: none")
    options = parser.parse_args(arguments)
    study = read(options.study / "study.json", PlannedStudy)
    references = {variant.name: variant.reference for variant in study.variants if variant.reference is not None}
    task = read_task(f"{options.study.as_posix()}/{options.what}")
    jobs, of_command = list[Job](), False
    for variant, key in (task.parts or {}).items():
        folder = options.study / variant
        status = finished(folder / options.what)
        if status is not None and status.key == key:
            continue
        of_command = "program" in read_yaml(folder / "config.yaml")
        if options.what == "equivalence":
            gpus, reference = options.gpus, references[variant]
            jobs.append(equivalence_job(folder, reference, of_command=of_command, gpus=gpus, key=key))
        else:
            jobs.append(prediction_job(folder, of_command=of_command, key=key))
    os.environ["OMP_NUM_THREADS"] = str(max(1, (os.cpu_count() or 1) // options.at_once))
    with ExitStack() as stack:
        if of_command:
            # A baseline's outputs are computed once for all. Forks may not inherit such a folder: they would remove it.
            os.environ[SHARED_VARIABLE] = stack.enter_context(scratch_folder())
        elif jobs:
            preload(jobs[0].command[2])
        for job, status in supervise(jobs, at_once=options.at_once, timeout_s=options.timeout or None):
            name = job.out.relative_to(options.study.parent).as_posix()
            print(printable(f"{name}: {status.status} after {status.wall_s:.1f} s {status.error or ''}"), flush=True)  # noqa: T201
    write_record(task)
    return 0


if __name__ == "__main__":
    exit_with(main)
