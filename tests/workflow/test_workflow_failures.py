"""What goes wrong stays where it went wrong: a page all the same, an exit code, and the next call repairs it."""

import base64
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from steptrace.record import read_status, write_status

pytestmark = pytest.mark.workflow


def wait_for(condition, seconds=300.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "took too long"
        time.sleep(0.1)


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"


def test_failures_leave_a_page_an_exit_code_and_are_all_that_runs_next(project):
    project.edit(
        "config/study/tiny.yaml",
        "  other:",
        "  raises: [loss.mode=raise]\n  killed: [loss.mode=kill]\n  hungry: [loss.mode=oom]\n  other:",
    )
    result = project.run()
    assert result.returncode == 1
    project.ran()
    endings = {}
    for variant in ("raises", "killed", "hungry", "other"):
        status = json.loads((project.folder / f"results/tiny/{variant}/run0/status.json").read_text())
        endings[variant] = (status["status"], status["signal"])
        log = (project.folder / f"results/tiny/{variant}/run0/train.log").read_text()
        assert "timed 1/2" in log
    assert endings == {
        "raises": ("failed", None),
        "killed": ("killed", 9),
        "hungry": ("oom", None),
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
    assert len(verdict["failed"]) == 6
    assert "ValueError: the loss is not a number" in result.stdout  # the terminal says it too
    assert result.stdout.rstrip().endswith("the same command again runs only what failed or is missing")

    project.write("fixed", "")
    result = project.run()
    assert result.returncode == 0, result.stdout
    trained = sorted(line for line in project.ran() if line.startswith("train"))
    assert trained == sorted(f"train results/tiny/{v}/run{k}" for v in ("raises", "killed", "hungry") for k in (0, 1))
    status = json.loads((project.folder / "results/tiny/raises/run0/status.json").read_text())
    assert (status["status"], status["attempt"]) == ("ok", 2)
    assert "Nothing to be done" in project.run().stdout


def test_a_broken_gate_trains_nothing_and_is_said_again_without_running_anything(project):
    project.write(
        "config/workflow.yaml",
        "studies: [tiny]\nrepeats: 2\nscale: cpu\ngates: {tiny: {other: {equivalence.status: {equals: differs}}}}\n",
    )
    for expected in ({"compare", "report"}, set()):  # the page names its gates
        result = project.run()
        assert result.returncode == 1
        assert "gate broken: tiny/other equivalence.status is same, expected differs" in result.stdout
        assert {line.split()[0] for line in project.ran()} == expected
        told = f"see {project.folder}/results/verdict.json and {project.folder}/reports/tiny.html"
        assert result.stdout.rstrip().splitlines()[-1] == f"steptrace: 1 gate broken: {told}"
        assert "the same command again" not in result.stdout


def test_the_last_words_are_about_the_working_directory_wherever_snakemake_was_called(project, tmp_path):
    gates = "gates: {tiny: {other: {equivalence.status: {equals: differs}}}}"
    project.write("config/workflow.yaml", f"studies: [tiny]\nrepeats: 2\nscale: cpu\n{gates}\n")
    (tmp_path / "elsewhere").mkdir()
    arguments = ("--snakefile", str(project.folder / "Snakefile"), "--directory", str(project.folder))
    result = project.run(*arguments, cwd=tmp_path / "elsewhere")
    assert result.returncode == 1
    assert "were not finished" not in result.stdout
    told = f"see {project.folder}/results/verdict.json and {project.folder}/reports/tiny.html"
    assert result.stdout.rstrip().splitlines()[-1] == f"steptrace: 1 gate broken: {told}"


def test_results_that_cannot_be_written_are_named_with_what_to_do(new_project):
    project = new_project
    shutil.rmtree(project.folder / "results" / ".cache", ignore_errors=True)
    project.write("results/.cache", "a file, in the way as another user's folder is")
    result = project.run("--dry-run")
    assert result.returncode == 2
    assert "results" in result.stdout
    assert "expected: a folder whose results/ and .snakemake/ this user may write to" in result.stdout


def test_who_may_not_write_can_look_and_is_told_how(new_project):
    project = new_project
    assert project.run("--dry-run").returncode == 0  # writes the configurations
    shutil.rmtree(project.folder / "results" / ".cache")
    project.write("results/.cache", "a file, in the way as another user's folder is")
    looked = project.run("--summary")
    assert looked.returncode == 0, looked.stdout
    assert "results/tiny/plain/run0/status.json" in looked.stdout
    tried = project.run("--dry-run")
    assert tried.returncode == 2
    assert "to look only: snakemake --summary" in tried.stdout
    other = project.run("--summary", "--config", "scale=gpu")
    assert other.returncode == 2
    assert "with the --config of the results" in other.stdout


def test_kill_9_leaves_no_process_and_the_same_command_goes_on(new_project, request):
    project = new_project
    project.edit("config/study/tiny.yaml", "seed=1", "seed=1, loss.mode=slow")
    running = project.start()
    request.addfinalizer(lambda: running.poll() is None and (running.kill(), running.communicate()))
    wait_for(lambda: (project.folder / "pid.txt").exists() and (project.folder / "pid.txt").read_text())
    training = int((project.folder / "pid.txt").read_text())

    second = project.run()
    assert second.returncode == 2
    assert f"another run (process {running.pid})" in second.stdout
    # Nor does a look at what another configuration would do reach the trainings that are still to come.
    snapshots = {path: path.read_bytes() for path in project.folder.glob("results/tiny/**/*.*") if path.is_file()}
    third = project.run("--dry-run", "--config", "repeats=4")
    assert third.returncode == 2
    assert f"another run (process {running.pid})" in third.stdout
    assert "under another configuration" in third.stdout
    assert project.run("--dry-run").returncode == 0
    assert {p: p.read_bytes() for p in snapshots if p.name in ("study.json", "config.yaml")} == {
        p: content for p, content in snapshots.items() if p.name in ("study.json", "config.yaml")
    }
    assert alive(training)

    running.send_signal(signal.SIGKILL)
    running.communicate()
    wait_for(lambda: not alive(training))
    before = [line for line in project.ran() if line.startswith("train")]
    assert not (project.folder / "results/tiny/other/run0/status.json").exists()

    project.write("fixed", "")
    marked = project.environment | {"STEPTRACE_WORKDIR": str(project.folder)}
    analysis = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], env=marked)  # as if left over
    request.addfinalizer(analysis.kill)
    result = project.run()
    assert result.returncode == 0, result.stdout
    assert analysis.wait(timeout=300) == -signal.SIGKILL
    assert "steptrace: processes left here by a killed run, now ended: 1" in result.stdout
    after = [line for line in project.ran() if line.startswith("train")]
    finished_before = [line for line in before if "/other/run0" not in line]
    assert sorted(finished_before + after) == sorted(
        f"train results/tiny/{v}/run{k}" for v in ("plain", "other") for k in (0, 1)
    )


def test_nothing_that_a_job_left_running_outlives_the_run(project):
    """As a fork server would, if its end took longer than Snakemake's."""
    leaves = "import subprocess\nleft = subprocess.Popen(['sleep', '300'], start_new_session=True, "
    leaves += "**dict.fromkeys(('stdin', 'stdout', 'stderr'), subprocess.DEVNULL))\n"
    leaves += "Path('left.txt').write_text(str(left.pid))\n"
    project.edit("workflow/scripts/report.py", "start =", f"{leaves}start =")
    result = project.run()
    assert result.returncode == 0, result.stdout
    assert not alive(int((project.folder / "left.txt").read_text()))


def test_a_run_that_ended_before_a_killed_workflow_knew_is_not_repeated(project):
    """Snakemake marks the outputs of jobs that run, and repeats what is marked."""
    runs = [project.folder / "results/tiny" / name for name in ("plain/run0", "other/run1")]
    began = [read_status(run).started_at for run in runs]
    marks = project.folder / ".snakemake/incomplete"
    for run in runs:
        output = str((run / "status.json").relative_to(project.folder))
        (marks / base64.urlsafe_b64encode(output.encode()).decode()).write_text("{}")
    write_status(runs[1], replace(read_status(runs[1]), key="of other code"))
    result = project.run()
    assert result.returncode == 0, result.stdout
    assert [line for line in project.ran() if line.startswith("train")] == ["train results/tiny/other/run1"]
    assert [read_status(run).started_at == before for run, before in zip(runs, began, strict=True)] == [True, False]
    assert not list(project.folder.rglob("status.finished.json"))
    assert "Nothing to be done" in project.run().stdout


@pytest.mark.parametrize("interrupted_by", [signal.SIGINT, signal.SIGKILL])
def test_a_run_that_was_cut_off_has_partial_pages_that_the_next_run_makes_whole(new_project, request, interrupted_by):
    project = new_project
    project.edit("config/study/tiny.yaml", "loss=fake]", "loss=fake, loss.mode=slow after the first round]")
    running = project.start(start_new_session=True)
    request.addfinalizer(lambda: running.poll() is None and (running.kill(), running.communicate()))
    wait_for(lambda: (project.folder / "pid.txt").exists())
    os.killpg(running.pid, interrupted_by)
    output, _ = running.communicate(timeout=300)
    if interrupted_by == signal.SIGKILL:
        command = [sys.executable, str(project.folder / "workflow/scripts/partial.py")]
        done = subprocess.run(
            command, cwd=project.folder, env=project.environment, stderr=subprocess.PIPE, text=True, timeout=300
        )
        output = done.stderr
    assert "partial: reports/tiny.html" in output
    assert "2 of 4 runs are in this comparison" in (project.folder / "reports/tiny.html").read_text()
    assert "2 not run yet" in (project.folder / "reports/index.html").read_text()
    first = [line.split()[0] for line in project.ran()]
    assert [first.count(kind) for kind in ("analyze_run", "equivalence", "predict")] == [0, 2, 2]

    project.write("fixed", "")
    result = project.run()
    assert result.returncode == 0, result.stdout
    assert sorted(line for line in project.ran() if line.startswith("train")) == [
        f"train results/tiny/{variant}/run1" for variant in ("other", "plain")
    ]
    assert "runs are in this comparison" not in (project.folder / "reports/tiny.html").read_text()
