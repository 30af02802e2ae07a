"""The extension is built by the workflow, for the variants that need it, and only when its sources changed."""

import json

import pytest

pytestmark = pytest.mark.workflow

PREPARE = """prepare:
  extension:
    command: ["{python}", -m, steptrace_giou.build, --out, "{out}"]
    env: {PYTHONPATH: "{steptrace}/ext/giou/python"}
    inputs: ["{steptrace}/ext/giou/csrc", "{steptrace}/ext/giou/python/steptrace_giou"]
    result: build.json
"""
BUILD = """
import argparse, sys
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path)
out = parser.parse_args().out
with Path("runs.txt").open("a") as file:
    file.write("build\\n")
print("compiling giou.cpp")
if "#error" in (Path(__file__).parents[2] / "csrc" / "giou.cpp").read_text():
    sys.exit("giou.cpp:1:2: error: a bracket is missing\\n    1 | #error\\n      |  ^~~~~")
(out / "build.json").write_text("{}")
(out / "operators.so").write_text("a library")
"""


@pytest.fixture
def with_kernel(project):
    """A project with a new variant of the extension's operators, an edited one, and an extension quick to build."""
    project.write("ext/giou/csrc/giou.cpp", "int main() {}\n")
    project.write("ext/giou/python/steptrace_giou/__init__.py", "")
    project.write("ext/giou/python/steptrace_giou/build.py", BUILD)
    project.write("config/loss/fake_kernel.yaml", "_target_: steptrace.workloads.giou_kernels.FusedLoss\n")
    project.edit("config/workflow.yaml", "repeats: 2", "repeats: 1")
    project.edit(
        "config/study/tiny.yaml", "  other:", "  kernel: {overrides: [loss=fake_kernel], needs: [extension]}\n  other:"
    )
    project.edit("config/study/tiny.yaml", "variants:", f"{PREPARE}variants:")
    project.edit("config/study/tiny.yaml", "seed=1", "seed=7")
    return project


def status(project):
    return json.loads((project.folder / "results/prepared/extension/status.json").read_text())


def test_it_is_built_before_anything_trains_and_again_when_its_sources_change(with_kernel, planned):
    result = with_kernel.run()
    assert result.returncode == 0, result.stdout
    ran = [line for line in with_kernel.ran() if line.startswith(("build", "train"))]
    assert ran[0] == "build"
    assert sorted(ran[1:]) == [f"train results/tiny/{variant}/run0" for variant in ("kernel", "other")]
    assert status(with_kernel)["status"] == "ok"
    assert "compiling giou.cpp" in (with_kernel.folder / "results/prepared/extension/prepare.log").read_text()

    library = with_kernel.folder / "results/prepared/extension/operators.so"
    whole = library.read_text()
    for damaged in ("", whole[:4]):
        library.write_text(damaged)
        assert planned(with_kernel.run("-n"))["prepare"] == 1
    library.unlink()
    assert planned(with_kernel.run("-n"))["prepare"] == 1
    library.write_text(whole)
    assert "Nothing to be done" in with_kernel.run("-n").stdout

    with_kernel.edit("ext/giou/csrc/giou.cpp", "{}", "{ }")
    jobs = planned(with_kernel.run("-n"))
    assert jobs["prepare"] == 1
    assert (jobs["train_tiny_run0"], jobs["equivalence_tiny"]) == (1, 1)


@pytest.mark.slow
def test_a_compiler_s_complaint_is_kept_whole_and_stops_nothing_else(with_kernel, planned):
    with_kernel.write("ext/giou/csrc/giou.cpp", "#error\n")
    result = with_kernel.run()
    assert "giou.cpp:1:2: error: a bracket is missing" in result.stdout
    log = (with_kernel.folder / "results/prepared/extension/prepare.log").read_text()
    assert "giou.cpp:1:2: error: a bracket is missing\n    1 | #error\n      |  ^~~~~" in log
    assert status(with_kernel)["status"] == "failed"
    assert (with_kernel.folder / "reports/tiny.html").exists()
    # The variant's own runs start too: it is they who say that they cannot do without.
    assert len({line for line in with_kernel.ran() if line.startswith("train")}) == 2
    assert planned(with_kernel.run("-n"))["prepare"] == 1  # a failed build is tried again

    with_kernel.write("ext/giou/csrc/giou.cpp", "int main() {}\n")
    assert with_kernel.run().returncode == 0
    assert status(with_kernel)["status"] == "ok"
    assert "Nothing to be done" in with_kernel.run("-n").stdout
