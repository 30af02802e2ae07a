"""Runs Snakemake, for tests."""

import functools
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import forked_python

#: What Snakemake and its jobs import of others' packages: 1 s of processor time a call.
IMPORTED = ("snakemake.cli", "numpy", "msgspec", "filelock", "requests", "jinja2")
ROOT = Path(__file__).parents[1]


@functools.cache
def _folder() -> "tempfile.TemporaryDirectory[str]":
    return tempfile.TemporaryDirectory(prefix="forked-snakemake-")


@functools.cache
def forked_snakemake() -> str:
    """A Python that begins with Snakemake imported, as the jobs of its calls do."""
    if sys.platform != "linux":
        return sys.executable
    return str(forked_python.executable(Path(_folder().name) / "python", IMPORTED))


def run_snakemake(
    *arguments: str, cwd: Path, environment: Mapping[str, str], python: str | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run it to its end; stdout and stderr come together in `stdout`."""
    return subprocess.run(
        [python or forked_snakemake(), "-m", "snakemake", *arguments],
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def run_checkout(folder: Path, *arguments: str, python: str | None = None) -> "subprocess.CompletedProcess[str]":
    """Run the workflow of this checkout in a folder of its own."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "STEPTRACE_FOLDER": str(folder / "locks")}
    here = ("--cores", "2", "--snakefile", str(ROOT / "Snakefile"), "--directory", str(folder))
    return run_snakemake(*here, *arguments, cwd=ROOT, environment=environment, python=python)
