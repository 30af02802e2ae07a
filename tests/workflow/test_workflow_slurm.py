"""profiles/slurm on a Slurm of one node with two made-up GPUs, started for the test. It takes minutes: ask for it.

apt-get install slurm-wlm munge; pip install 'snakemake-executor-plugin-slurm>=2.0'
STEPTRACE_TEST_SLURM=1 pytest tests/workflow/test_workflow_slurm.py        (as root)
"""

import contextlib
import importlib.util
import itertools
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]
#: Where the jobs' own calls look: Snakemake keeps the variables of the outer Slurm from them.
SETTINGS = Path("/etc/slurm")
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue")


#: Where the daemons of a test keep their files; the number is that of the test's process.
FOLDERS = Path("/run/steptrace-test-")


def belongs_to_a_slurm() -> bool:
    """Whether this machine has settings of a Slurm that are not what a killed test of this file has left behind."""
    settings = SETTINGS / "slurm.conf"
    if not settings.exists():
        return False
    test = re.search(rf"{FOLDERS}(\d+)/", settings.read_text(errors="replace"))
    return test is None or psutil.pid_exists(int(test[1]))


def why_not() -> str | None:
    if not os.environ.get("STEPTRACE_TEST_SLURM"):
        return "takes minutes and needs root: set STEPTRACE_TEST_SLURM to run it"
    missing = [name for name in PROGRAMS if not shutil.which(name)]
    if missing:
        return f"no {', '.join(missing)} on this machine"
    if not importlib.util.find_spec("snakemake_executor_plugin_slurm"):
        return "snakemake-executor-plugin-slurm is not installed"
    if belongs_to_a_slurm():
        return f"this machine belongs to a Slurm already: {SETTINGS}/slurm.conf"
    return None if os.geteuid() == 0 else "Slurm's daemons need root"


pytestmark = [pytest.mark.workflow, pytest.mark.skipif(why_not() is not None, reason=str(why_not()))]

# More processors than the machine may have: a job that asks for more than any node has would wait for ever.
CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}
SlurmctldPort={controller}
SlurmdPort={node}
SlurmUser=root
SlurmdUser=root
AuthInfo=socket={folder}/munge.socket
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
SlurmdTimeout=10
JobRequeue=0
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
ReturnToService=2
SlurmdParameters=config_overrides
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
NodeName={host} CPUs=8 RealMemory=4000 Gres=gpu:2 State=UNKNOWN
PartitionName=gpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("", 0))
        return int(listening.getsockname()[1])


def wait_for(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + 1500
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.2)


@dataclass
class Cluster:
    """A cluster of this machine."""

    node: "subprocess.Popen[bytes]"

    def start_node(self) -> None:
        self.node = subprocess.Popen(["slurmd", "-D"])
        wait_for(lambda: b"idle" in slurm_output("sinfo"), "no idle node")

    def lose_node(self) -> None:
        """End the node's daemon and all its jobs, as a power cut would."""
        self.node.kill()
        self.node.wait()
        for pid in [pid for pid, line in processes() if b"slurmstepd" in line]:
            with contextlib.suppress(psutil.NoSuchProcess):
                for process in [*psutil.Process(pid).children(recursive=True), psutil.Process(pid)]:
                    process.kill()


def slurm_output(*command: str) -> bytes:
    return subprocess.run(command, capture_output=True, check=False).stdout


def processes() -> Iterator[tuple[int, bytes]]:
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            yield int(entry.name), (entry / "cmdline").read_bytes()


@pytest.fixture(scope="module")
def slurm() -> Iterator[Cluster]:
    # Daemons refuse a socket below a folder that others may write to, and a long path.
    folder = Path(f"{FOLDERS}{os.getpid()}")
    for name in ("", "state", "spool"):
        (folder / name).mkdir(mode=0o755)
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    host = socket.gethostname().partition(".")[0]
    text = CONFIGURATION.format(host=host, folder=folder, controller=free_port(), node=free_port())
    SETTINGS.mkdir(exist_ok=True)
    (SETTINGS / "slurm.conf").write_text(text)
    gpus = "".join(f"NodeName={host} Name=gpu File=/dev/{device}\n" for device in ("null", "zero"))
    (SETTINGS / "gres.conf").write_text(gpus)
    files = [
        f"--{name}={folder}/munge.{name.partition('-')[0]}" for name in ("socket", "key-file", "pid-file", "log-file")
    ]
    started = [subprocess.Popen(["munged", "--foreground", "--force", f"--seed-file={folder}/munge.seed", *files])]
    cluster = Cluster(started[0])
    try:
        wait_for((folder / "munge.socket").exists, "munged did not start")
        started.append(subprocess.Popen(["slurmctld", "-D", "-c"]))
        cluster.start_node()
        yield cluster
    finally:
        for daemon in (cluster.node, *reversed(started)):
            daemon.terminate()
            daemon.wait()
        shutil.rmtree(folder)
        for name in ("slurm.conf", "gres.conf"):
            (SETTINGS / name).unlink()


def profile(folder: Path, **changes: str) -> None:
    """Make the profile fit a cluster of this size."""
    path = folder / "profiles/slurm/config.yaml"
    text = path.read_text()
    for old, new in (
        ("mem_mb: 32000", "mem_mb: 500"),
        ("max-threads: 8", "max-threads: 2"),
        ("checks: 10", "checks: 2"),
        *changes.items(),
    ):
        assert old in text
        text = text.replace(old, new)
    path.write_text(f"{text}slurm-init-seconds-before-status-checks: 2\n")


def start(folder: Path, environment: dict[str, str], *arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "snakemake", "--workflow-profile", "profiles/slurm", *arguments]
    to = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(command, cwd=folder, env=environment, text=True, **to)


def run(folder: Path, environment: dict[str, str], *arguments: str) -> tuple[int, str]:
    running = start(folder, environment, *arguments)
    output, _ = running.communicate(timeout=1500)
    return running.returncode, output


def trained(project) -> set[str]:
    return {line.removeprefix("train results/tiny/") for line in project.ran() if line.startswith("train")}


@pytest.mark.usefixtures("slurm")
def test_trainings_are_submitted_each_with_a_gpu_and_one_that_fails_stops_nothing(new_project) -> None:
    project = new_project
    profile(project.folder)
    project.edit("config/study/tiny.yaml", "  other:", "  raises: [loss.mode=raise]\n  other:")
    project.write("pace", "0.5")
    code, output = run(project.folder, project.environment, "--config", "repeats=1", "scale=gpu")
    assert code == 1, output
    assert re.search(r"failed: tiny/raises run0\b.*: failed, ValueError: the loss is not a number", output)
    spans = [line.split() for line in (project.folder / "spans.txt").read_text().splitlines()]
    trainings = [(float(begin), float(end), gpu) for kind, begin, end, gpu in spans if kind == "train"]
    assert len(trainings) == 2
    assert {gpu for *_, gpu in trainings} <= {"0", "1"}
    for (a, b, one), (c, d, other) in itertools.combinations(trainings, 2):
        assert one != other or b <= c or d <= a
    assert trained(project) == {"plain/run0", "other/run0", "raises/run0"}
    # Trainings were submitted, tables and pages made here.
    comments = re.findall(r" Comment=(\S+)", slurm_output("scontrol", "-o", "show", "job").decode())
    for rule, count in {"train_tiny_run0": 3, "equivalence_tiny": 1, "prediction_tiny": 1}.items():
        assert sum(rule in comment for comment in comments) == count, comments
    assert len(comments) == 5
    project.write("fixed", "")
    code, output = run(project.folder, project.environment, "--config", "repeats=1", "scale=gpu")
    assert code == 0, output
    assert trained(project) == {"raises/run0"}
    assert "Nothing to be done" in run(project.folder, project.environment, "--config", "repeats=1", "scale=gpu")[1]


def test_an_scancel_and_a_node_that_goes_away(new_project, slurm: Cluster) -> None:
    project = new_project
    profile(project.folder)
    arguments = ("--config", "repeats=1", "scale=gpu")
    project.edit("config/study/tiny.yaml", "other: [seed=1]", "other: [seed=1, loss.mode=slow]")
    done: set[str] = set()
    for ends in ("scancel", "lost"):
        running = start(project.folder, project.environment, *arguments)
        wait_for((project.folder / "pid.txt").exists, "the training did not start")
        training = int((project.folder / "pid.txt").read_text())
        wait_for((project.folder / "results/tiny/plain/run0/status.json").exists, "the other did not end")
        if ends == "scancel":
            environment = Path(f"/proc/{training}/environ").read_bytes().split(b"\0")
            (job,) = (one.partition(b"=")[2].decode() for one in environment if one.startswith(b"SLURM_JOB_ID="))
            assert subprocess.run(["scancel", job], check=False).returncode == 0
        else:
            slurm.lose_node()
        output, _ = running.communicate(timeout=1500)
        assert running.returncode == 1, output
        assert "steptrace: failed: results/tiny/other/run0/status.json was not made" in output
        assert not (project.folder / "results/tiny/other/run0/status.json").exists()
        wait_for(lambda pid=training: not Path(f"/proc/{pid}").exists(), "the training still runs")
        done |= trained(project)
        (project.folder / "pid.txt").unlink()
    assert done == {"plain/run0", "other/run0"}
    slurm.start_node()
    project.write("fixed", "")
    code, output = run(project.folder, project.environment, *arguments)
    assert code == 0, output
    assert trained(project) == {"other/run0"}


VARIANTS = """
variants:
  boolean_mask: [loss=boolean_mask]
  ignore_index: [loss=ignore_index]
  broken: [loss=broken]
"""
BROKEN_LOSS = """
from steptrace.workloads.masked_losses import IgnoreIndexLoss


class Loss(IgnoreIndexLoss):
    def forward(self, output, target):
        raise ValueError("the loss is broken")
"""
#: Of a variant, what does not depend on how long anything took.
SAME = ("name", "hypothesis", "overrides", "baseline", "digest", "status", "syncs", "operators_per_step")


@pytest.mark.usefixtures("slurm")
def test_the_comparison_is_that_of_a_run_on_this_machine(small_study: str, tmp_path: Path) -> None:
    by_place = {}
    for where in ("here", "slurm"):
        folder = tmp_path / where
        shutil.copytree(ROOT / "profiles", folder / "profiles")
        for name, text in {
            "config/workflow.yaml": "studies: [small]\nrepeats: 1\nscale: cpu\nallow_targets: [broken_loss]\n",
            "config/study/small.yaml": small_study + VARIANTS,
            "config/loss/broken.yaml": "_target_: broken_loss.Loss\nignore_index: -1\nbackground: 9\n",
            "plugins/broken_loss.py": BROKEN_LOSS,
        }.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        profile(folder, **{"scale=gpu": "scale=cpu"})
        command = ["--snakefile", str(ROOT / "Snakefile")]
        command += [] if where == "slurm" else ["--executor", "local", "--cores", "2"]
        code, output = run(folder, {**os.environ, "STEPTRACE_FOLDER": str(tmp_path / "locks")}, *command)
        assert code == 1, output  # one variant is broken
        text = (folder / "results/small/comparison.json").read_text()
        by_place[where] = json.loads(text.replace(str(folder), "the project"))
    here = by_place["here"]
    slurm = by_place["slurm"]
    statuses = [[variant["status"] for variant in document["variants"]] for document in (here, slurm)]
    assert statuses == [["ok", "ok", "failed"]] * 2
    for ours, theirs in zip(here["variants"], slurm["variants"], strict=True):
        assert {key: ours[key] for key in SAME} == {key: theirs[key] for key in SAME}
        assert ours["equivalence"]["status"] == theirs["equivalence"]["status"]
        assert [run["status"] for run in ours["runs"]] == [run["status"] for run in theirs["runs"]]
        assert {key for key in ours if ours[key] is None} == {key for key in theirs if theirs[key] is None}
    assert slurm["variants"][0]["syncs"]["predicted_per_step"] > 0
    for key in ("study", "title", "baseline", "scale", "environments_differ", "gates"):
        assert here[key] == slurm[key]
