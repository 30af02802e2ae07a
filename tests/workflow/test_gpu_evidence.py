"""gpu_evidence.sh: what is done stays done, a limit and a signal leave what there is. The interpreter is a fake."""

import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from steptrace.documents.base import read
from steptrace.documents.run import Environment

pytestmark = pytest.mark.workflow

SCRIPT = Path("workflow/scripts/gpu_evidence.sh")

FAKE = """#!/usr/bin/env bash
echo "$*" >>"$CALLS"
case "$*" in
  *evidence.py*studies*) echo one; echo two:1; echo "many: left out, it needs 2 GPUs" >&2 ;;
  *snakemake*"$HANGS"*) [ -z "$HANGS" ] || { echo $$ >"$CALLS.hangs"; exec sleep 600; } ;;
  *"$FAILS"*) [ -z "$FAILS" ] || exit 1 ;;
esac
"""


@dataclass(frozen=True)
class Node:
    """A checkout with nothing in it but the script, and an interpreter that writes down what it was called with."""

    folder: Path

    def environment(self, hangs: str, fails: str) -> dict[str, str]:
        python = str(self.folder / "python")
        own = {"CALLS": str(self.folder / "calls"), "HANGS": hangs, "FAILS": fails, "ARCHIVE": "all.tar.gz"}
        return {"PATH": "/usr/bin:/bin", "REHEARSE": "1", "PYTHON": python, "COMMIT": "c0ffee", **own}

    def start(self, *, hangs: str = "", fails: str = "", **environment: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            ["bash", str(self.folder / SCRIPT)],
            env=self.environment(hangs, fails) | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *, hangs: str = "", fails: str = "", **environment: str) -> tuple[int, str]:
        process = self.start(hangs=hangs, fails=fails, **environment)
        output, _ = process.communicate(timeout=300)
        return process.returncode, output

    def calls(self) -> list[str]:
        """What was called since the last time, each as its most telling word."""
        path = self.folder / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        known = (
            "build_ext",
            "steptrace_giou.build",
            "-m pytest",
            "giou.py",
            "capture.py",
            "studies=[one]",
            "studies=[two]",
            "evidence.py collect",
            "partial.py",
            "small_studies",
        )
        return [next((word for word in known if word in line), "other") for line in lines]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    for folder in ("src", "ext", "bench", "tests", "config", str(SCRIPT.parent)):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "tests" / "test_a.py").write_text("pytest.mark.gpu\n")
    shutil.copy(Path(__file__).parents[2] / SCRIPT, tmp_path / SCRIPT)
    (tmp_path / "python").write_text(FAKE)
    (tmp_path / "python").chmod(0o755)
    return Node(tmp_path)


STUDIES = ["other", "studies=[one]", "evidence.py collect", "studies=[two]", "evidence.py collect"]


def test_the_most_valuable_comes_first_and_a_second_call_does_what_is_left(node: Node) -> None:
    code, output = node.run()
    assert (code, "failed" in output) == (0, False), output
    # An archive after each stage and each study; the stages after the studies are left out of a rehearsal.
    first = ["other", "build_ext", "steptrace_giou.build", "evidence.py collect", "-m pytest", "evidence.py collect"]
    first += [*["giou.py"] * 4, "capture.py", "evidence.py collect", *STUDIES, *["evidence.py collect"] * 2]
    assert node.calls() == first
    assert "not read (rehearsal)" in (node.folder / "build/rehearsal/results/evidence/counters.txt").read_text()
    assert "many: left out" in (node.folder / "build/rehearsal/results/evidence/left_out.txt").read_text()

    assert node.run()[0] == 0
    assert node.calls() == ["other", *STUDIES]

    (node.folder / "src" / "built.so").write_text("")
    assert node.run()[0] == 0
    assert node.calls() == ["other", *STUDIES]  # what the first stage builds is no change of the sources

    (node.folder / "src" / "a.py").write_text("changed = True\n")
    assert node.run()[0] == 0
    assert node.calls() == first


def test_a_stage_that_failed_is_said_again_and_not_tried_again_until_asked_for(node: Node) -> None:
    code, output = node.run(fails="-m pytest")
    assert (code, "gpu-evidence: tests failed\n" in output) == (1, True)
    node.calls()
    code, output = node.run()
    assert (code, "tests (in an earlier call; STAGE=tests tries again) failed" in output) == (1, True)
    assert "-m pytest" not in node.calls()
    assert node.run(STAGE="tests")[0] == 0
    assert node.run()[0] == 0


def test_a_stage_on_a_bare_node_builds_what_it_needs_first(node: Node) -> None:
    assert node.run(STAGE="tests")[0] == 0
    built = ["other", "build_ext", "steptrace_giou.build", "evidence.py collect"]
    assert node.calls() == [*built, "-m pytest", "evidence.py collect"]
    assert node.run(STAGE="tests")[0] == 0
    assert node.calls() == ["other", "-m pytest", "evidence.py collect"]


def test_where_the_reader_cannot_be_compiled_the_rest_is_built(node: Node) -> None:
    code, output = node.run(STAGE="build", fails="build_ext")
    assert (code, "traces are read without compiled code" in output) == (0, True)
    assert node.calls() == ["other", "build_ext", "steptrace_giou.build", "evidence.py collect"]


def test_after_the_limit_nothing_is_started_and_what_there_is_is_collected(node: Node) -> None:
    code, output = node.run(MINUTES="0")
    assert (code, "the limit of 0 minutes was reached at: build. The same call goes on." in output) == (1, True)
    assert [call for call in node.calls() if call != "other"] == ["partial.py", "evidence.py collect"]
    assert node.run()[0] == 0  # nothing counts as done


def test_told_to_stop_it_ends_what_runs_and_collects(node: Node) -> None:
    process = node.start(hangs="studies=[two]")
    calls = node.folder / "calls"
    deadline = time.monotonic() + 300
    while "studies=[two]" not in (calls.read_text() if calls.exists() else ""):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 1
    assert "stopped; what there is, is collected" in output
    assert node.calls()[-3:] == ["studies=[two]", "partial.py", "evidence.py collect"]


@pytest.mark.skipif(not shutil.which("setpriv"), reason="no setpriv on this machine")
def test_what_runs_ends_with_a_call_that_is_killed(node: Node) -> None:
    process, pid = node.start(hangs="studies=[two]"), node.folder / "calls.hangs"
    deadline = time.monotonic() + 300
    while not (pid.exists() and pid.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.kill()
    process.communicate(timeout=300)  # the output ends with the last process that has it open


def test_a_study_cut_off_by_the_limit_has_a_partial_comparison_in_the_archive(node: Node) -> None:
    code, output = node.run(hangs="studies=[two]", MINUTES="0.1")
    assert (code, "was reached at: study two" in output) == (1, True), output
    assert node.calls()[-3:] == ["studies=[two]", "partial.py", "evidence.py collect"]


def test_small_sizes_need_small_studies_and_have_results_of_their_own(node: Node) -> None:
    assert node.run(SIZES="tiny", REHEARSE="") == (2, "there are no sizes tiny: give SIZES=small or none\n")
    assert node.run(SIZES="small", REHEARSE="")[0] == 0
    assert (node.folder / "build/small/results/evidence/left_out.txt").is_file()
    assert node.calls()[:3] == ["other", "small_studies", "other"]


def test_an_unknown_stage_is_refused(node: Node) -> None:
    assert node.run(STAGE="studys") == (2, "there is no stage studys\n")


def test_the_machine_is_described_as_in_a_run_s_record(tmp_path: Path) -> None:
    script = SCRIPT.parent / "describe_machine.py"
    subprocess.run([sys.executable, Path(__file__).parents[2] / script, tmp_path / "machine.json"], check=True)
    assert read(tmp_path / "machine.json", Environment).torch == torch.__version__
