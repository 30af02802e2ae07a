"""What goes wrong stays where it went wrong: a page all the same, an exit code, and the next call repairs it."""

import json
import signal
from collections import Counter

import pytest

from processes import gone, wait_for

pytestmark = pytest.mark.workflow


def kinds(ran):
    return Counter(line.split()[0] for line in ran)


def test_variants_are_lines_that_run_alone_and_fail_alone_and_a_broken_gate_runs_nothing(project):
    project.edit(
        "config/study/tiny.yaml",
        "  other:",
        "  raises: [loss.mode=raise]\n  killed: [loss.mode=kill]\n  unpredictable: [loss.mode=unpredictable]\n  other:",
    )
    result = project.run()
    assert result.returncode == 1
    ran = project.ran()
    assert kinds(ran) == {"train": 6, "equivalence": 3, "predict": 3, "analyze_runs": 6, "compare": 1, "report": 2}
    of_variants = [line for line in ran if not line.startswith(("compare", "report"))]
    assert {line.split("/")[2] for line in of_variants} == {"raises", "killed", "unpredictable"}
    endings = {}
    for variant in ("raises", "killed", "unpredictable", "other"):
        status = json.loads((project.folder / f"results/tiny/{variant}/run0/status.json").read_text())
        endings[variant] = (status["status"], status["signal"])
        log = (project.folder / f"results/tiny/{variant}/run0/train.log").read_text()
        assert "timed 1/2" in log
    assert endings == {
        "raises": ("failed", None),
        "killed": ("killed", 9),
        "unpredictable": ("ok", None),
        "other": ("ok", None),
    }
    assert (project.folder / "reports/tiny.html").exists()
    assert (project.folder / "reports/index.html").exists()
    verdict = json.loads((project.folder / "results/verdict.json").read_text())
    assert verdict["status"] == "fail"
    assert [f"{f['variant']} {f['run']} {f['error']}" for f in verdict["failed"]][:2] == [
        "raises run0 ValueError: the loss is not a number",
        "raises run1 ValueError: the loss is not a number",
    ]
    assert len(verdict["failed"]) == 4  # a step that cannot be predicted is no failure
    predictions = project.folder.glob("results/tiny/*/prediction/status.json")
    statuses = {path.parts[-3]: json.loads(path.read_text())["status"] for path in predictions}
    assert [name for name in statuses if statuses[name] == "failed"] == ["unpredictable"]
    assert "ValueError: the loss is not a number" in result.stdout  # the terminal says it too
    last = result.stdout.rstrip().splitlines()
    assert last[-1] == f"steptrace: report: {project.folder}/reports/index.html"
    assert result.stdout.count("reports/index.html") == 1
    assert result.stdout.count("tiny/raises run0") == 2  # as it ends, and in the verdict
    assert result.stdout.count("the same command again") == 1
    assert "RuleException" not in result.stdout

    project.write("fixed", "")
    result = project.run()
    assert result.returncode == 0, result.stdout
    ran = project.ran()
    assert not any(line.startswith("predict") for line in ran)  # what cannot be predicted is not tried again
    trained = sorted(line for line in ran if line.startswith("train"))
    assert trained == sorted(f"train results/tiny/{v}/run{k}" for v in ("raises", "killed") for k in (0, 1))
    status = json.loads((project.folder / "results/tiny/raises/run0/status.json").read_text())
    assert status["status"] == "ok"

    # A variant that is removed, and a gate, which the page names, train nothing.
    project.edit("config/study/tiny.yaml", "  killed: [loss.mode=kill]\n", "")
    gates = "gates: {tiny: {other: {equivalence.status: {equals: differs}}}}"
    project.edit("config/workflow.yaml", "scale: cpu", f"scale: cpu\n{gates}")
    for expected in ({"compare": 1, "report": 2}, {}):
        result = project.run()
        assert result.returncode == 1
        assert "gate broken: tiny/other equivalence.status is same, expected differs" in result.stdout
        assert kinds(project.ran()) == expected
        assert result.stdout.rstrip().splitlines()[-1] == f"steptrace: report: {project.folder}/reports/index.html"
        assert "the same command again" not in result.stdout


def test_kill_9_leaves_no_process_and_the_same_command_goes_on_and_tries_failures_again(project, request):
    variants = "seed=1, loss.mode=slow after the first round]\n  raises: [loss.mode=raise]"
    project.edit("config/study/tiny.yaml", "seed=1]", variants)
    running = project.start()
    request.addfinalizer(lambda: running.poll() is None and (running.kill(), running.communicate()))
    wait_for(lambda: (project.folder / "pid.txt").exists() and (project.folder / "pid.txt").read_text())
    training = int((project.folder / "pid.txt").read_text())

    second = project.run()
    assert second.returncode == 2
    assert f"another snakemake is running in {project.folder}" in second.stdout
    # Nor does a look at what another configuration would do reach the trainings that are still to come.
    study = (project.folder / "results/tiny/study.json").read_bytes()
    assert project.run("--dry-run", "--config", "repeats=4").returncode == 0
    assert (project.folder / "results/tiny/study.json").read_bytes() == study
    assert not gone(training)

    running.send_signal(signal.SIGKILL)
    running.communicate()
    wait_for(lambda: gone(training))
    before = [line for line in project.ran() if line.startswith("train")]
    assert not (project.folder / "results/tiny/other/run1/status.json").exists()
    assert json.loads((project.folder / "results/tiny/raises/run0/status.json").read_text())["status"] == "failed"

    project.write("fixed", "")
    result = project.run()
    assert result.returncode == 0, result.stdout
    after = [line for line in project.ran() if line.startswith("train")]
    finished_before = [line for line in before if "/other/run1" not in line and "/raises/" not in line]
    assert sorted(finished_before + after) == sorted(
        f"train results/tiny/{v}/run{k}" for v in ("other", "raises") for k in (0, 1)
    )
