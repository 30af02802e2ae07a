"""Runs Snakemake, for tests."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]


def run_snakemake(*arguments: str, cwd: Path, environment: Mapping[str, str]) -> "subprocess.CompletedProcess[str]":
    """Run it to its end; stdout and stderr come together in `stdout`."""
    return subprocess.run(
        [sys.executable, "-m", "snakemake", *arguments],
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def run_checkout(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run the workflow of this checkout, with nothing replaced, in a folder of its own."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "STEPTRACE_FOLDER": str(folder / "locks")}
    here = ("--cores", "2", "--snakefile", str(ROOT / "Snakefile"), "--directory", str(folder))
    return run_snakemake(*here, *arguments, cwd=ROOT, environment=environment)
