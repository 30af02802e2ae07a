"""profiles/slurm on a Slurm of one node, started for the test. It takes a minute, so that it is asked for:

apt-get install slurm-wlm munge; pip install 'snakemake-executor-plugin-slurm>=2.0'
STEPTRACE_TEST_SLURM=1 pytest tests/workflow/test_workflow_slurm.py        (as root)
"""

import importlib.util
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

#: Where the jobs' own calls look: Snakemake keeps the variables of the outer Slurm from them.
SETTINGS = Path("/etc/slurm")
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue")


def why_not() -> str | None:
    if not os.environ.get("STEPTRACE_TEST_SLURM"):
        return "takes a minute and needs root: set STEPTRACE_TEST_SLURM to run it"
    missing = [name for name in PROGRAMS if not shutil.which(name)]
    if missing:
        return f"no {', '.join(missing)} on this machine"
    if not importlib.util.find_spec("snakemake_executor_plugin_slurm"):
        return "snakemake-executor-plugin-slurm is not installed"
    if (SETTINGS / "slurm.conf").exists():
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
NodeName={host} CPUs=8 RealMemory=4000 Gres=gpu:1 State=UNKNOWN
PartitionName=gpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("", 0))
        return int(listening.getsockname()[1])


def wait_for(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.2)


@pytest.fixture
def slurm() -> Iterator[None]:
    """A cluster of this machine, with one made-up GPU."""
    # Daemons refuse a socket below a folder that others may write to, and a long path.
    folder = Path("/run") / f"steptrace-test-{os.getpid()}"
    for name in ("", "state", "spool"):
        (folder / name).mkdir(mode=0o755)
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    host = socket.gethostname().partition(".")[0]
    text = CONFIGURATION.format(host=host, folder=folder, controller=free_port(), node=free_port())
    SETTINGS.mkdir(exist_ok=True)
    (SETTINGS / "slurm.conf").write_text(text)
    (SETTINGS / "gres.conf").write_text(f"NodeName={host} Name=gpu File=/dev/null\n")
    files = [
        f"--{name}={folder}/munge.{name.partition('-')[0]}" for name in ("socket", "key-file", "pid-file", "log-file")
    ]
    started = [subprocess.Popen(["munged", "--foreground", "--force", f"--seed-file={folder}/munge.seed", *files])]
    try:
        wait_for((folder / "munge.socket").exists, "munged did not start")
        started += [subprocess.Popen(command) for command in (["slurmctld", "-D", "-c"], ["slurmd", "-D"])]
        wait_for(lambda: b"idle" in subprocess.run(["sinfo"], capture_output=True, check=False).stdout, "no idle node")
        yield
    finally:
        for daemon in reversed(started):
            daemon.terminate()
            daemon.wait()
        shutil.rmtree(folder)
        for name in ("slurm.conf", "gres.conf"):
            (SETTINGS / name).unlink()


@pytest.mark.usefixtures("slurm")
def test_the_profile_runs_a_study(new_project) -> None:
    new_project.edit("profiles/slurm/config.yaml", "scale=gpu", "scale=cpu")
    new_project.edit("profiles/slurm/config.yaml", "mem_mb: 32000", "mem_mb: 500")
    new_project.edit(
        "profiles/slurm/config.yaml", "seconds-between-status-checks: 10", "seconds-between-status-checks: 2"
    )
    arguments = ("--workflow-profile", "profiles/slurm", "--config", "repeats=1")
    command = [word for word in new_project.command(*arguments) if word not in ("--cores", "2")]
    result = subprocess.run(
        command,
        cwd=new_project.folder,
        env=new_project.environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    ran = new_project.ran()
    assert {"train results/tiny/plain/run0", "train results/tiny/other/run0"} <= set(ran)
    # Trainings were submitted, tables and pages made here.
    submitted = set(re.findall(r"submitted with SLURM jobid .*/rule_(\w+)/", result.stdout + result.stderr))
    assert {"train_tiny_round0", "equivalence_tiny", "predict_tiny"} <= submitted
    assert not submitted & {"compare", "report", "index", "analyze_tiny"}
