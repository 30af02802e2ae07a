"""What goes wrong stays where it went wrong: a page all the same, an exit code, and the next call repairs it."""

import json
import shutil
import signal

import pytest

from processes import gone, wait_for

pytestmark = pytest.mark.workflow


def test_failures_leave_a_page_an_exit_code_and_are_all_that_runs_next(project, planned):
    project.edit(
        "config/study/tiny.yaml",
        "  other:",
        "  raises: [loss.mode=raise]\n  killed: [loss.mode=kill]\n  unpredictable: [loss.mode=unpredictable]\n  other:",
    )
    result = project.run()
    assert result.returncode == 1
    project.ran()
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

    jobs = planned(project.run("--dry-run"))
    assert (jobs["train_tiny_run0"], jobs["train_tiny_run1"]) == (2, 2)

    project.write("fixed", "")
    result = project.run()
    assert result.returncode == 0, result.stdout
    ran = project.ran()
    assert not any(line.startswith("predict") for line in ran)  # what cannot be predicted is not tried again
    trained = sorted(line for line in ran if line.startswith("train"))
    assert trained == sorted(f"train results/tiny/{v}/run{k}" for v in ("raises", "killed") for k in (0, 1))
    status = json.loads((project.folder / "results/tiny/raises/run0/status.json").read_text())
    assert status["status"] == "ok"
    assert "Nothing to be done" in project.run().stdout


def test_a_broken_gate_trains_nothing_and_is_reported_again_without_running_anything(project):
    project.write(
        "config/workflow.yaml",
        "studies: [tiny]\nrepeats: 2\nscale: cpu\ngates: {tiny: {other: {equivalence.status: {equals: differs}}}}\n",
    )
    for expected in ({"compare", "report"}, set()):  # the page names its gates
        result = project.run()
        assert result.returncode == 1
        assert "gate broken: tiny/other equivalence.status is same, expected differs" in result.stdout
        assert {line.split()[0] for line in project.ran()} == expected
        assert result.stdout.rstrip().splitlines()[-1] == f"steptrace: report: {project.folder}/reports/index.html"
        assert "the same command again" not in result.stdout


def test_results_that_cannot_be_written_are_named(new_project):
    project = new_project
    shutil.rmtree(project.folder / "results" / ".cache", ignore_errors=True)
    project.write("results/.cache", "a file, in the way as another user's folder is")
    result = project.run()
    assert result.returncode == 2
    assert "results/.cache" in result.stdout
    assert "Traceback" not in result.stdout


def test_kill_9_leaves_no_process_and_the_same_command_goes_on_and_tries_failures_again(new_project, request):
    project = new_project
    variants = "seed=1, loss.mode=slow after the first round]\n  raises: [loss.mode=raise]"
    project.edit("config/study/tiny.yaml", "seed=1]", variants)
    running = project.start()
    request.addfinalizer(lambda: running.poll() is None and (running.kill(), running.communicate()))
    wait_for(lambda: (project.folder / "pid.txt").exists() and (project.folder / "pid.txt").read_text(), 300)
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
    wait_for(lambda: gone(training), seconds=300)
    before = [line for line in project.ran() if line.startswith("train")]
    assert not (project.folder / "results/tiny/other/run1/status.json").exists()
    assert json.loads((project.folder / "results/tiny/raises/run0/status.json").read_text())["status"] == "failed"

    project.write("fixed", "")
    result = project.run()
    assert result.returncode == 0, result.stdout
    after = [line for line in project.ran() if line.startswith("train")]
    finished_before = [line for line in before if "/other/run1" not in line and "/raises/" not in line]
    assert sorted(finished_before + after) == sorted(
        f"train results/tiny/{v}/run{k}" for v in ("plain", "other", "raises") for k in (0, 1)
    )
