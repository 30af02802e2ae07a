"""Runs Snakemake, for tests."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path


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
