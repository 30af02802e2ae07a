"""The profiles: keys that Snakemake and its plugins know, and the commands that submit jobs to Kubernetes and AWS.

Neither is at hand: `kubectl` and `aws` are stand-ins that run a job on this machine.
"""

import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from snakemake.cli import get_argument_parser

ROOT = Path(__file__).parents[2]
PROFILES = sorted(path.parent.name for path in ROOT.glob("profiles/*/config.yaml"))
#: What profiles use of snakemake-executor-plugin-slurm 2.8 and -cluster-generic 1.0.9.
PLUGINS = {
    "slurm": {"slurm-no-account", "slurm-status-command"},
    "cluster-generic": {f"cluster-generic-{name}-cmd" for name in ("submit", "status", "cancel")},
    None: set(),
}
#: Does what the two commands do as far as the profiles use them; a job's state is its exit code in a file.
STAND_IN = """#!{python}
import json, os, subprocess, sys
from pathlib import Path

words = sys.argv[1:]
jobs = Path({folder!r})
with (jobs / "called").open("a") as file:
    file.write(json.dumps([Path(sys.argv[0]).name, *words]) + chr(10))

def start(command, folder):
    name = f"job-{{len(list(jobs.glob('job-*')))}}"
    (jobs / name).write_text("")
    script = '"$@"; echo $? > "$0"'
    to = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    subprocess.Popen(["bash", "-c", script, str(jobs / name), *command], cwd=folder, start_new_session=True, **to)
    print(name)

def ended(name):
    return (jobs / name).read_text().strip() if (jobs / name).exists() else None

if words[0] == "create":
    manifest = json.load(sys.stdin)
    (jobs / "manifest.json").write_text(json.dumps(manifest))
    (container,) = manifest["spec"]["template"]["spec"]["containers"]
    start(container["command"], container["workingDir"])
elif words[0] == "get" and (code := ended(words[2])) is not None:
    print(words[2], "1" if code == "0" else "", "1" if code not in ("", "0") else "", end="")
elif words[1:2] == ["submit-job"]:
    start(json.loads(words[words.index("--container-overrides") + 1])["command"], "/")
elif words[1:2] == ["describe-jobs"]:
    code = ended(words[words.index("--jobs") + 1])
    print("None" if code is None else {{"": "RUNNING", "0": "SUCCEEDED"}}.get(code, "FAILED"))
"""


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the stand-ins, which are found first."""
    folder = tmp_path / "jobs"
    folder.mkdir()
    for name in ("kubectl", "aws"):
        (folder / name).write_text(STAND_IN.format(python=sys.executable, folder=str(folder)))
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder


def profile(name: str) -> dict[str, object]:
    return dict(yaml.safe_load((ROOT / "profiles" / name / "config.yaml").read_text()))


@pytest.mark.parametrize("name", PROFILES)
def test_every_key_is_known_and_all_have_what_the_default_one_has(name: str) -> None:
    found = profile(name)
    known = {option.removeprefix("--") for action in get_argument_parser()._actions for option in action.option_strings}
    executor = found.get("executor")
    assert set(found) <= known | PLUGINS[executor]
    assert {key: found[key] for key in profile("default")} == profile("default")
    if executor and importlib.util.find_spec(f"snakemake_executor_plugin_{str(executor).replace('-', '_')}"):
        assert set(found) <= known


@pytest.mark.parametrize("name", ["kubernetes", "aws-batch"])
def test_jobs_are_submitted_asked_for_and_cancelled(name: str, jobs: Path, tmp_path: Path) -> None:
    scripts = ROOT / "profiles" / name
    work = tmp_path / "work folder"
    work.mkdir()
    (work / "good.sh").write_text("touch done; while [ ! -e go ]; do sleep 0.01; done")
    (work / "bad.sh").write_text("exit 3")

    def call(*words: str) -> str:
        done = subprocess.run(words, cwd=work, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    command = str(profile(name)["cluster-generic-submit-cmd"]).format(
        resources=type("", (), {"gpu": 2, "mem_mb": 500}), threads=3
    )
    submit = [str(ROOT / command.split()[0]), *command.split()[1:]]
    good, bad = call(*submit, "good.sh"), call(*submit, "bad.sh")
    assert call(f"{scripts}/status", good) == "running"
    (work / "go").touch()
    until = time.monotonic() + 60
    while (call(f"{scripts}/status", good), call(f"{scripts}/status", bad)) != ("success", "failed"):
        assert time.monotonic() < until
        time.sleep(0.02)
    assert (work / "done").exists()  # it ran in the working directory
    assert call(f"{scripts}/status", "gone") == "failed"
    call(f"{scripts}/cancel", good, bad)
    called = (jobs / "called").read_text()
    assert called.count(good) >= 2
    if name == "kubernetes":
        (container,) = json.loads((jobs / "manifest.json").read_text())["spec"]["template"]["spec"]["containers"]
        assert container["resources"] == {
            "requests": {"cpu": 3, "memory": "500Mi"},
            "limits": {"memory": "500Mi", "nvidia.com/gpu": 2},
        }
        assert json.loads(called.splitlines()[-1])[:3] == ["kubectl", "delete", "job"]
    else:
        overrides = json.loads(json.loads(called.splitlines()[0])[-5])
        assert overrides["resourceRequirements"] == [
            {"type": "VCPU", "value": "3"},
            {"type": "MEMORY", "value": "500"},
            {"type": "GPU", "value": "2"},
        ]
        assert [json.loads(line)[2:5] for line in called.splitlines()[-2:]] == [
            ["terminate-job", "--job-id", good],
            ["terminate-job", "--job-id", bad],
        ]


@pytest.mark.parametrize("name", ["kubernetes", "aws-batch"])
def test_no_answer_is_no_failure(name: str, jobs: Path) -> None:
    for command in ("kubectl", "aws"):
        (jobs / command).write_text("#!/bin/sh\nexit 1\n")
    done = subprocess.run([ROOT / "profiles" / name / "status", "x"], capture_output=True, text=True, check=True)
    assert done.stdout == "running\n"


@pytest.mark.workflow
@pytest.mark.skipif(
    not importlib.util.find_spec("snakemake_executor_plugin_cluster_generic"),
    reason="snakemake-executor-plugin-cluster-generic is not installed",
)
@pytest.mark.parametrize("name", ["kubernetes", "aws-batch"])
def test_a_study_runs(name: str, new_project, jobs: Path) -> None:
    project = new_project
    project.edit(f"profiles/{name}/config.yaml", "scale=gpu", "scale=cpu")
    project.edit(f"profiles/{name}/config.yaml", "status-checks: 10", "status-checks: 1")
    project.edit("config/study/tiny.yaml", "  other:", "  raises: [loss.mode=raise]\n  other:")
    command = [sys.executable, "-m", "snakemake", "--workflow-profile", f"profiles/{name}", "--config", "repeats=1"]
    for code, trained in ((1, {"plain", "other", "raises"}), (0, {"raises"})):
        where = {"cwd": project.folder, "env": project.environment}
        done = subprocess.run(command, **where, capture_output=True, text=True, timeout=1200, check=False)
        assert done.returncode == code, done.stdout + done.stderr
        ran = {line.split("/")[2] for line in project.ran() if line.startswith("train")}
        assert ran == trained
        project.write("fixed", "")
    submitted = {f for f in jobs.iterdir() if f.name.startswith("job-")}
    assert len(submitted) == 3 * 3 + 1  # trainings, checks and predictions; then the one that had failed
