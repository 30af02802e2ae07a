"""The workflow's script that compares, as its rule calls it."""

import subprocess
import sys
from pathlib import Path
from typing import Any

from steptrace.files import read_json

SCRIPT = Path(__file__).parents[2] / "workflow" / "scripts" / "compare.py"


def call(folder: Path, out: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), str(folder), "--out", str(out)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)


def test_job_writes_the_comparison_with_its_findings(folder: Any, tmp_path: Path) -> None:
    folder.make_study([{"name": "base"}, {"name": "absent"}])
    folder.add_runs("base", [10.0, 10.1, 9.9], profiled_ms=[13.0])
    done = call(folder.path, tmp_path / "comparison.json")
    assert (done.returncode, done.stderr) == (0, "")
    comparison = read_json(tmp_path / "comparison.json")
    assert {finding["rule"] for finding in comparison["findings"]} == {
        "which_variant",
        "profiler_overhead",
        "failed_run",
    }
    first = (tmp_path / "comparison.json").read_bytes()
    call(folder.path, tmp_path / "comparison.json")
    assert (tmp_path / "comparison.json").read_bytes() == first


def test_job_says_what_is_missing(tmp_path: Path) -> None:
    done = call(tmp_path / "nowhere", tmp_path / "comparison.json")
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "study.json" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "comparison.json").exists()
