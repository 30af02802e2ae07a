"""Faults at random moments: afterwards one plain command completes, and no finished run is lost. `make soak` runs it.

STEPTRACE_SOAK_KILLS: how many kills, 50 unless given. The seed of each trial is its number.
"""

import os
import random
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from steptrace.documents.run import Status
from steptrace.record import read_status

pytestmark = [pytest.mark.workflow, pytest.mark.slow, pytest.mark.timeout(0)]

KILLS = int(os.environ.get("STEPTRACE_SOAK_KILLS", "50"))
#: By what their command line holds; a guard is a fork of its supervisor, so it has the supervisor's.
VICTIMS = {
    "snakemake": b"snakemake",
    "supervisor or guard": b"steptrace.train.supervise",
    "fork server or its forks": b"steptrace.train.fork_server",
    "training": b"steptrace.train.main",
    "check": b"steptrace.train.equivalence",
    "analysis": b"analyze_run.py",
    "comparison": b"compare.py",
    "shell": b"tee",
}
LONGEST_S = 300


def processes(folder: Path) -> dict[int, bytes]:
    """Command lines of everything that works in a folder."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if (entry / "cwd").readlink() == folder:
                found[int(entry.name)] = (entry / "cmdline").read_bytes()
        except OSError:
            continue
    return found


def finished(folder: Path) -> dict[Path, Status]:
    """The runs that have ended well."""
    found = {}
    for file in (folder / "results" / "tiny").glob("*/run*/status.json"):
        status = read_status(file.parent)
        if status.status == "ok":
            found[file] = status
    return found


def check_whole(project, before: dict[Path, Status]) -> None:
    """One plain command completes: all runs are there, and those that were are the same."""
    result = project.run()
    assert result.returncode == 0, result.stdout
    after = finished(project.folder)
    assert len(after) == 4
    assert {file: status.started_at for file, status in before.items()} == {
        file: after[file].started_at for file in before
    }
    assert "unlock" not in result.stdout
    ended = time.monotonic() + 10  # a fork server ends when it is told that Snakemake has
    while left := processes(project.folder):
        assert time.monotonic() < ended, left
        time.sleep(0.05)
    assert "Nothing to be done" in project.run().stdout


@pytest.mark.parametrize("trial", range(KILLS))
def test_a_kill(new_project, trial: int) -> None:
    chance = random.Random(trial)
    project = new_project
    project.edit("config/study/tiny.yaml", "loss=fake]", "loss=fake, loss.mode=half a second]")
    wanted = chance.choice([*VICTIMS])
    number = signal.SIGKILL if chance.random() < 0.7 else signal.SIGTERM
    begun = time.monotonic()
    running = project.start(start_new_session=True)
    moment = begun + chance.uniform(0, 14)
    killed = False
    while running.poll() is None and not killed:
        assert time.monotonic() < begun + LONGEST_S
        time.sleep(0.005 if time.monotonic() > moment else 0.1)
        victims = [pid for pid, line in processes(project.folder).items() if VICTIMS[wanted] in line]
        if time.monotonic() > moment and victims:
            try:
                os.kill(chance.choice(victims), number)
                killed = True
            except ProcessLookupError:
                continue
    running.communicate(timeout=LONGEST_S)
    before = finished(project.folder)
    check_whole(project, before)


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


@pytest.mark.parametrize("moment", [0.0, 0.4, 0.8])
def test_a_disk_that_becomes_read_only(small_disk, moment: float) -> None:
    project, disk = small_disk
    subprocess.run(["mount", "-o", "remount,size=50m", disk], check=True)
    project.edit("config/study/tiny.yaml", "loss=fake]", "loss=fake, loss.mode=half a second]")
    running = project.start(start_new_session=True)
    while moment and running.poll() is None and len(finished(project.folder)) < 4 * moment:
        time.sleep(0.05)
    while subprocess.run(["mount", "-o", "remount,ro", disk], check=False, stderr=subprocess.DEVNULL).returncode:
        time.sleep(0.02)  # while anything is open for writing it is refused
        if running.poll() is not None:
            break
    running.communicate(timeout=LONGEST_S)
    subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
    check_whole(project, finished(project.folder))


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
