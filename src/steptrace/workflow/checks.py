"""A check of every variant of a study in one job, each variant in a child of its own: a crash is one variant's.

    python -m steptrace.workflow.checks equivalence|prediction results/STUDY --keys VARIANT=KEY... --out FILE

What has ended well under the same key is not done again, so an edit of one variant costs one child. FILE gets the keys.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import yaml

from steptrace.config.study import GPU_CONFIG
from steptrace.files import write_json
from steptrace.format import printable
from steptrace.launch.main import SHARED_VARIABLE
from steptrace.record import finished
from steptrace.train.supervise import Job, supervise

_REFERENCE: Final = "reference.yaml"


def _equivalence(variant: Path, reference: str, *, of_command: bool, gpus: int) -> Job:
    """Loss and gradient against the study's reference."""
    module = ["steptrace.launch.main", "equivalence"] if of_command else ["steptrace.train.equivalence"]
    out = variant / "equivalence"
    files = ["--config", str(variant / "config.yaml"), "--reference", str(variant.parent / reference)]
    command = [sys.executable, "-m", *module, *files, "--out", str(out)]
    return Job(out, command, gpus=gpus)


def _prediction(variant: Path, _reference: str, *, of_command: bool, gpus: int) -> Job:  # noqa: ARG001
    """The syncs on a GPU, as the variant would train there."""
    module = ["steptrace.launch.main", "predict"] if of_command else ["steptrace.predict.main"]
    command = [sys.executable, "-m", *module, "--config", str(variant / GPU_CONFIG), "--out", str(variant)]
    return Job(variant / "prediction", command, log="predict.log")


_CHECKS: Final = {"equivalence": _equivalence, "prediction": _prediction}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(description="Check every variant of a study.")
    parser.add_argument("what", choices=_CHECKS)
    parser.add_argument("study", type=Path, help="results/STUDY")
    parser.add_argument("--keys", nargs="+", required=True, metavar="VARIANT=KEY")
    parser.add_argument("--gpus", type=int, default=0, help="that a child takes")
    parser.add_argument("--at-once", type=int, default=1, help="children at once")
    parser.add_argument("--timeout", type=float, default=0, help="seconds for each child; 0: none")
    parser.add_argument("--out", type=Path, required=True, help="file that marks the end")
    options = parser.parse_args(arguments)
    document = json.loads((options.study / "study.json").read_text(encoding="utf-8"))
    references = {variant["name"]: variant.get("reference") or _REFERENCE for variant in document["variants"]}
    keys = dict(pair.partition("=")[::2] for pair in options.keys)
    jobs = []
    for variant, key in keys.items():
        folder = options.study / variant
        status = finished(folder / options.what)
        if status is not None and status.key == key:
            continue
        config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
        job = _CHECKS[options.what](folder, references[variant], of_command="program" in config, gpus=options.gpus)
        jobs.append(Job(**{**vars(job), "key": key}))
    os.environ["OMP_NUM_THREADS"] = str(max(1, (os.cpu_count() or 1) // options.at_once))
    with tempfile.TemporaryDirectory(prefix="steptrace-") as shared:
        os.environ[SHARED_VARIABLE] = shared  # a baseline's outputs are computed once for all
        for job, status in supervise(jobs, at_once=options.at_once, timeout_s=options.timeout or None):
            name = job.out.relative_to(options.study.parent).as_posix()
            print(printable(f"{name}: {status.status} after {status.wall_s:.1f} s {status.error or ''}"), flush=True)  # noqa: T201
    write_json(options.out, keys)
    return 0


if __name__ == "__main__":
    sys.exit(main())
