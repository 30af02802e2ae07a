"""Faults at random moments: afterwards one plain command completes, and no finished run is lost. `make soak` runs it.

STEPTRACE_SOAK_KILLS: how many kills and damages, 50 unless given. The seed of each trial is its number. Each kill hits
a living process.
"""

import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import psutil
import pytest

from steptrace.documents.run import Status
from steptrace.run_folder import read_status
from steptrace.tasks import TASKS_FILE, Task
from steptrace.workflow.made import State, state_of
from workflow.conftest import ROOT, Project
from workflow.test_workflow_damage import DAMAGE, FILES, contents

pytestmark = [pytest.mark.workflow, pytest.mark.slow, pytest.mark.timeout(0)]

KILLS = int(os.environ.get("STEPTRACE_SOAK_KILLS", "50"))
DAMAGES = KILLS
#: By how their command line begins, after the interpreter's name.
VICTIMS = {
    "snakemake": (b"-m", b"snakemake"),
    "supervisor": (b"-m", b"steptrace.jobs.supervise"),
    "training": (b"-m", b"steptrace.lab"),
    "rank": (b"-u", b"-m", b"steptrace.lab"),
    "torchrun": (b"-m", b"steptrace.lab.torchrun"),
    "checks": (b"-m", b"steptrace.workflow.checks"),
    "check": (b"-m", b"steptrace.equivalence.main"),
    "prediction": (b"-m", b"steptrace.predict.main"),
    "analysis": (b"-m", b"steptrace.workflow.job", b"/analysis"),
    "comparison": (b"-m", b"steptrace.workflow.job", b"/comparison"),
    "page": (b"-m", b"steptrace.workflow.job", b"reports/tiny"),
    "index": (b"-m", b"steptrace.workflow.job", b"reports/index"),
}
#: They live as long as the whole, so that any moment of it will do.
LONG = ("snakemake",)
#: How many there are; of the others four and more.
COUNTS = {
    **{"torchrun": 2, "checks": 2, "check": 2, "prediction": 2, "analysis": 2},
    **{"comparison": 1, "page": 1, "index": 1},
}
#: Seconds that each of the others takes at least, and to its kill: one of the kind is alive then.
PACE = 1.5
LATEST = 1.2
LONGEST_S = 1500


def processes(folder: Path) -> dict[int, list[bytes]]:
    """Command lines of everything that lives and works in a folder."""
    lines = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (entry / "cwd").readlink() == folder and (line := (entry / "cmdline").read_bytes()):  # else it has ended
                lines[int(entry.name)] = line.split(b"\0")
    return lines


def victims(folder: Path, kind: str) -> list[int]:
    """Processes of a kind."""
    start = VICTIMS[kind]
    lines = ((pid, line[1 : 1 + len(start)]) for pid, line in processes(folder).items())
    return [pid for pid, line in lines if len(line) == len(start) and all(map(bytes.endswith, line, start))]


def finished(folder: Path) -> dict[Path, Status]:
    """The runs that have ended well."""
    statuses = {file: read_status(file.parent) for file in folder.glob("results/tiny/*/run*/status.json")}
    return {file: status for file, status in statuses.items() if status.status == "ok"}


def check_whole(project, before: dict[Path, Status], runs: int = 4, *, unnoted: int = 0) -> None:
    """One plain command completes: all runs are there, and those that were are the same.

    `unnoted`: runs whose end Snakemake may not have noted before it was killed, which it makes once more.
    """
    result = project.run()
    assert processes(project.folder) == {}
    assert result.returncode == 0, result.stdout
    after = finished(project.folder)
    assert len(after) == runs
    checks = [file for what in ("equivalence", "prediction") for file in project.folder.glob(f"results/*/*/{what}")]
    assert [read_status(folder).status for folder in checks] == 4 * ["ok"]
    assert sum(after[file].started_at != status.started_at for file, status in before.items()) <= unnoted
    assert "unlock" not in result.stdout
    check_results(project)
    assert "Nothing to be done" in project.run().stdout


def check_results(project) -> None:
    """What a kill may not change: what is written of the runs is as it is without any."""
    folder = project.folder
    comparison = json.loads((folder / "results/tiny/comparison.json").read_text())
    ran = {file.parent.parent.name for file in finished(folder)}
    assert {variant["name"] for variant in comparison["variants"]} == ran
    assert {run["status"] for variant in comparison["variants"] for run in variant["runs"]} == {"ok"}
    assert json.loads((folder / "results/verdict.json").read_text())["status"] == "pass"
    assert {"index.html", "tiny.html", "tiny.ipynb"} <= {file.name for file in (folder / "reports").iterdir()}
    assert not list(folder.glob("results/**/*.tmp"))
    for name, task in read_tasks(folder).items():
        assert state_in(folder, task).reason is None, name


def read_tasks(folder: Path) -> dict[str, Task]:
    """The tasks of a folder's last call."""
    lines = (folder / TASKS_FILE).read_bytes().splitlines()
    return {task.name: task for task in (msgspec.json.decode(line, type=Task) for line in lines)}


def state_in(folder: Path, task: Task) -> State:
    """Whether a task's results stand, asked in its folder."""
    with contextlib.chdir(folder):
        return state_of(task)


def kill_one(
    running: "subprocess.Popen[str]",
    kind: str,
    living_now: Callable[[], list[int]],
    number: int,
    wanted: int,
    delay: float,
) -> None:
    """Kill the `wanted`-th process of a kind to appear, or a later one, so many seconds after it has."""
    begun = time.monotonic()
    seen = dict[int, float]()
    while True:
        assert running.poll() is None, f"no {kind} to kill: {running.communicate()[0]}"
        assert time.monotonic() < begun + LONGEST_S, f"no {kind} to kill within {LONGEST_S} s"
        living = living_now()
        seen |= {pid: time.monotonic() for pid in living if pid not in seen}
        due = [pid for pid in [*seen][wanted - 1 :] if pid in living and time.monotonic() > seen[pid] + delay]
        if due:
            os.kill(due[0], number)
            return
        time.sleep(0.02)


@pytest.mark.parametrize("trial", range(KILLS))
def test_a_kill(new_project, trial: int) -> None:
    """Of a process of one kind, some time after the first, second, third or fourth of its kind has appeared."""
    chance = random.Random(trial)
    project = new_project
    project.write("pace", str(PACE))
    kind = [*VICTIMS][trial % len(VICTIMS)]
    if kind in ("torchrun", "rank"):
        project.edit("config/study/tiny.yaml", "[seed=1]", "[seed=1, distributed.world_size=2]")
    # Snakemake's handler of SIGTERM waits for a lock, for ever if a job has just ended and the lock is its own.
    number = signal.SIGKILL if chance.random() < 0.7 or kind == "snakemake" else signal.SIGTERM
    wanted = 1 if kind in LONG else chance.randint(1, COUNTS.get(kind, 4))
    delay = chance.uniform(0, 14 if kind in LONG else LATEST)
    running = project.start(start_new_session=True)
    begun = time.monotonic()
    kill_one(running, kind, lambda: victims(project.folder, kind), number, wanted, delay)
    at_s = time.monotonic() - begun
    running.communicate(timeout=LONGEST_S)
    before = finished(project.folder)
    moment = f"{number.name} {delay:.2f} s after its start, {at_s:.1f} s after snakemake's"
    sys.stdout.write(
        f"\ntrial {trial}: {kind} {wanted}, {moment}; exit code {running.returncode}, {len(before)} done\n"
    )
    check_whole(project, before, unnoted=int(kind in LONG))


#: How many kills of processes where checks are forked, which train for real: a fifth of the others.
FORKED_KILLS = KILLS // 5


def tree(folder: Path) -> dict[str, list[int]]:
    """Of a folder's processes Snakemake, the jobs that check variants, their forks, and the trainings."""
    lines = processes(folder)
    checks = {pid for pid, line in lines.items() if tuple(line[1:3]) == VICTIMS["checks"]}
    parents = {}
    for pid in checks:
        with contextlib.suppress(psutil.NoSuchProcess):
            parents[pid] = psutil.Process(pid).ppid()
    return {
        "snakemake": [pid for pid, line in lines.items() if tuple(line[1:3]) == VICTIMS["snakemake"]],
        "checks": [pid for pid, parent in parents.items() if parent not in checks],
        "fork": [pid for pid, parent in parents.items() if parent in checks],
        "training": [pid for pid, line in lines.items() if tuple(line[1:3]) == VICTIMS["training"]],
    }


@pytest.fixture
def forking(small_study: str, tmp_path: Path) -> Project:
    """A project of two variants that train; their checks are forks of a process that has imported PyTorch."""

    class Forking(Project):
        @property
        def environment(self) -> dict[str, str]:
            keep = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
            own = {"PYTHONPATH": str(ROOT / "src"), "STEPTRACE_FOLDER": str(self.folder / "locks")}
            return {**keep, **own, "CUDA_VISIBLE_DEVICES": ""}

        def command(self, *arguments: str) -> list[str]:
            return super().command("--snakefile", str(ROOT / "Snakefile"), *arguments)

        def run(self, *arguments: str, **options: object) -> "subprocess.CompletedProcess[str]":
            return super().run("--snakefile", str(ROOT / "Snakefile"), *arguments, **options)

    project = Forking(tmp_path)
    project.write("plugins/empty.py", "")  # the folder that the study names
    project.write("config/workflow.yaml", "studies: [tiny]\nrepeats: 2\nscale: cpu\n")
    variants = "variants:\n  boolean_mask: [loss=boolean_mask]\n  ignore_index: [loss=ignore_index]\n"
    longer = small_study.replace("scale.timed_steps=4", "scale.timed_steps=600")  # so that each lives long enough
    project.write("config/study/tiny.yaml", longer + variants)
    return project


@pytest.mark.parametrize("trial", range(FORKED_KILLS))
def test_a_kill_where_checks_are_forked(forking: Project, trial: int) -> None:
    """Of a process of one kind, some time after the first or a later one of its kind has appeared."""
    chance = random.Random(1000 + trial)
    kinds = ("fork", "checks", "snakemake", "training")
    kind = kinds[trial % len(kinds)]
    wanted = {"snakemake": 1, "checks": chance.randint(1, 2)}.get(kind, chance.randint(1, 4))
    delay = chance.uniform(1, 25) if kind == "snakemake" else chance.uniform(0, 0.8)
    number = signal.SIGKILL if chance.random() < 0.7 or kind == "snakemake" else signal.SIGTERM
    running = forking.start(start_new_session=True)
    kill_one(running, kind, lambda: tree(forking.folder)[kind], number, wanted, delay)
    running.communicate(timeout=LONGEST_S)
    before = finished(forking.folder)
    sys.stdout.write(f"\nforked trial {trial}: {kind} {wanted}, {number.name}; exit code {running.returncode}, ")
    sys.stdout.write(f"{len(before)} done\n")
    check_whole(forking, before, unnoted=int(kind == "snakemake"))


@pytest.fixture
def small_disk(new_project, tmp_path: Path) -> Iterator[tuple[object, Path]]:
    """A project on a disk of its own, with a megabyte and a half left."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    disk = tmp_path / "disk"
    disk.mkdir()
    size = sum(file.stat().st_size + 4096 for file in new_project.folder.rglob("*"))
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size + 1_500_000}", "tmpfs", disk], check=False)
    if mounted.returncode:
        pytest.skip("this machine lets nobody mount anything")
    shutil.copytree(new_project.folder, disk / "project")
    yield type(new_project)(disk / "project"), disk
    subprocess.run(["umount", "-l", disk], check=True)


def free(disk: Path, ballast: Path, keep: int) -> None:
    """Fill a disk but for so many bytes."""
    room = os.statvfs(disk)
    ballast.write_bytes(b"\0" * max(room.f_bavail * room.f_bsize - keep, 0))


@pytest.mark.parametrize("keep", [0, 20_000, 100_000, 300_000])
def test_a_full_disk(small_disk, keep: int) -> None:
    project, disk = small_disk
    ballast = disk / "ballast"
    free(disk, ballast, keep)
    result = project.run()
    assert result.returncode != 0
    assert not re.search(r"^Traceback", result.stdout, re.MULTILINE) or "No space left" in result.stdout
    before = finished(project.folder)
    ballast.unlink()
    check_whole(project, before)


@pytest.mark.parametrize("name", ["results", "results/tiny/other", "reports"])
def test_a_folder_that_is_read_only(new_project, name: str) -> None:
    folder = new_project.folder / name
    folder.mkdir(parents=True, exist_ok=True)
    for arguments in (["--bind", folder, folder], ["-o", "remount,bind,ro", folder]):
        if subprocess.run(["mount", *arguments], check=False).returncode:
            pytest.skip("mounting a folder needs root and a machine that allows it")
    try:
        result = new_project.run()
    finally:
        subprocess.run(["umount", "-l", folder], check=True)
    assert result.returncode != 0
    assert "Read-only" in result.stdout
    check_whole(new_project, finished(new_project.folder))


@pytest.mark.parametrize("trial", range(DAMAGES))
def test_damage_at_random(project, trial: int) -> None:
    """One to four files, each in a way of its own; every third time without Snakemake's records."""
    chance = random.Random(2000 + trial)
    before = contents(project.folder)
    for name in chance.sample(FILES, chance.randint(1, 4)):
        kind = chance.choice([*DAMAGE])
        DAMAGE[kind](project.folder / name)
        sys.stdout.write(f"\ntrial {trial}: {name} {kind}")
    if trial % 3 == 0:
        shutil.rmtree(project.folder / ".snakemake")
    result = project.run()
    assert result.returncode == 0, result.stdout
    assert contents(project.folder) == before
    assert "Nothing to be done" in project.run().stdout


@pytest.mark.parametrize("trial", range(5))
def test_clocks_of_files(project, trial: int) -> None:
    chance = random.Random(trial)
    files = [file for file in (project.folder / "results").rglob("*") if file.is_file()]
    for file in chance.sample(files, len(files) // 2):
        moment = time.time() + chance.choice([-1, 1]) * 10 ** chance.uniform(1, 7)
        os.utime(file, (moment, moment))
    result = project.run()
    assert result.returncode == 0, result.stdout
    assert not [line for line in project.ran() if line.startswith("train")]
    assert len(finished(project.folder)) == 4
