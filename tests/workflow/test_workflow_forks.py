"""Runs forked from a server are what processes of their own would have been, and end like them."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from steptrace.record import read_status
from steptrace.train.fork_client import VARIABLE

#: Stands in for Snakemake under `nohup`: starts each command it is given, says its process id and later its exit code.
OWNER = """
import json, signal, subprocess, sys
signal.signal(signal.SIGHUP, signal.SIG_IGN)
for line in sys.stdin:
    order = json.loads(line)
    child = subprocess.Popen(order["command"], env=order["environment"], stderr=open(order["said"], "w"))
    print(child.pid, flush=True)
    if order["wait"]:
        print(child.wait(), flush=True)
"""


MODULE = ("-m", "steptrace.train.main")


@dataclass(frozen=True)
class Owner:
    """The process that supervisors and the server live no longer than."""

    process: "subprocess.Popen[str]"
    folder: Path
    environment: dict[str, str]

    def start(self, name, *options, program=MODULE, mode="ok", fork="1", wait=False, **environment):
        """Start the supervisor of one fake training, forked unless `fork` is "0"; return its pid."""
        (self.folder / f"{name}.yaml").write_text(json.dumps({"loss": {"mode": mode}}))
        command = [sys.executable, "-m", "steptrace.train.supervise", "--out", name, "--attempt", "1"]
        command += ["--expect", "run.json", "--server", "run0", "--device", "cpu", *options]
        command += ["--", sys.executable, *program]
        command += ["--config", f"{name}.yaml", "--out", name, "--repeat", "0"]
        variables = self.environment | {VARIABLE: fork} | environment
        order = {"command": command, "environment": variables, "said": str(self.folder / f"{name}.said"), "wait": wait}
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def run(self, name, *options, **settings):
        """Run one to its end; return what it left of itself."""
        self.start(name, *options, wait=True, **settings)
        assert self.process.stdout.readline() == "0\n", self.said(name)
        began = self.folder / name / "began.json"
        return json.loads(began.read_text()) if began.exists() else None

    def said(self, name):
        return (self.folder / f"{name}.said").read_text()

    def status(self, name):
        return read_status(self.folder / name)


@pytest.fixture
def owner(new_project):
    command = [sys.executable, "-c", OWNER]
    folder = new_project.folder
    process = subprocess.Popen(command, cwd=folder, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    yield Owner(process, folder, new_project.environment)
    process.kill()
    process.communicate()
    wait_for(lambda: not servers(process.pid))


def servers(owner):
    """The running servers of an owner, with their watchers and forks."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = entry.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"steptrace.train.fork_server" in command and str(owner).encode() in command and running(entry.parent.name):
            found.append(int(entry.parent.name))
    return found


def wait_for(condition, seconds=30.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "took too long"
        time.sleep(0.02)


def running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_a_forked_run_is_what_a_process_of_its_own_would_have_been(owner):
    own = owner.run("own", fork="0", CUDA_VISIBLE_DEVICES="7")
    forked = [owner.run(name, CUDA_VISIBLE_DEVICES="7") for name in ("one", "two")]
    assert own["imported"] == own["pid"]
    assert forked[0]["imported"] == forked[1]["imported"]
    assert forked[0]["imported"] in servers(owner.process.pid)
    assert len({run["pid"] for run in forked} | {forked[0]["imported"]}) == 3
    for name, run in zip(("one", "two"), forked, strict=True):
        assert run["session"] == run["pid"]
        for same in ("folder", "handlers", "files"):
            assert run[same] == own[same]
        assert [argument.replace(name, "own") for argument in run["arguments"]] == own["arguments"]
        assert run["environment"] == own["environment"] | {VARIABLE: "1"}
        assert (owner.folder / name / "train.log").read_text() == (owner.folder / "own" / "train.log").read_text()
        said, expected = (re.sub(r"[\d.]+ s", "", owner.said(run)) for run in (name, "own"))
        assert said.replace(name, "own") == expected


def test_another_environment_is_another_server(owner):
    """What libraries read while they are imported is as it would be in a process of its own."""
    first, same, other = (owner.run(name, OMP_NUM_THREADS=n) for name, n in (("a", "2"), ("b", "2"), ("c", "1")))
    assert first["imported"] == same["imported"] != other["imported"] != other["pid"]
    assert other["environment"]["OMP_NUM_THREADS"] == "1"


@pytest.mark.parametrize("mode", ["raise", "kill", "oom"])
def test_a_forked_run_fails_like_any_other(owner, mode):
    for name, fork in (("own", "0"), ("forked", "1")):
        owner.run(name, mode=mode, fork=fork)
    own, forked = owner.status("own"), owner.status("forked")
    assert own.status != "ok"
    assert (forked.status, forked.exit_code, forked.signal, forked.error) == (
        own.status,
        own.exit_code,
        own.signal,
        own.error,
    )
    assert forked.log_tail[-1:] == own.log_tail[-1:]


def test_the_time_limit_ends_a_forked_run(owner):
    told = owner.run("late", "--timeout", "0.5", mode="slow")
    assert "timeout_minutes" in owner.status("late").error
    assert told["imported"] != told["pid"]
    assert not running(told["pid"])


@pytest.mark.parametrize("killed", ["client", "owner", "run"])
def test_nothing_is_left_of_a_run_when_one_process_is_killed(owner, killed):
    client = owner.start("run", mode="slow")
    wait_for((owner.folder / "pid.txt").exists)
    run = int((owner.folder / "pid.txt").read_text())
    os.kill({"client": client, "owner": owner.process.pid, "run": run}[killed], signal.SIGKILL)
    wait_for(lambda: not running(run))
    if killed == "run":
        wait_for((owner.folder / "run/status.json").exists)
        assert owner.status("run").signal == signal.SIGKILL
    else:
        wait_for(lambda: not running(client))
        assert not (owner.folder / "run/status.json").exists()  # it counts as not begun
    wait_for(lambda: bool(servers(owner.process.pid)) == (killed != "owner"))


def test_a_server_that_imports_ends_with_its_owner(owner):
    main = owner.folder / "src/steptrace/train/main.py"
    waits = "if 'fork_server' in sys.argv[0]:\n    Path('imports').touch()\n    time.sleep(60)\nIMPORTED ="
    main.write_text(main.read_text().replace("IMPORTED =", waits, 1))
    client = owner.start("run")
    wait_for((owner.folder / "imports").exists)
    owner.process.kill()
    wait_for(lambda: not running(client) and not servers(owner.process.pid))
    assert not (owner.folder / "run/status.json").exists()


def test_a_server_that_is_killed_costs_no_run(owner):
    client = owner.start("run", mode="slow")
    wait_for((owner.folder / "pid.txt").exists)
    run = int((owner.folder / "pid.txt").read_text())
    (owner.folder / "fixed").touch()
    os.kill(servers(owner.process.pid)[0], signal.SIGKILL)
    wait_for(lambda: not running(run) and not running(client))
    assert owner.status("run").status == "ok"
    told = json.loads((owner.folder / "run/began.json").read_text())
    assert told["imported"] == told["pid"] != run


@pytest.mark.parametrize("why", ["cannot import", "holds a GPU"])
def test_without_a_server_a_run_is_a_process_of_its_own(owner, why):
    main = owner.folder / "src/steptrace/train/main.py"
    problem = "raise OSError" if why == "cannot import" else "Path.readlink = lambda _: Path('/dev/nvidia0')"
    text = main.read_text().replace("IMPORTED =", f"if 'fork_server' in sys.argv[0]:\n    {problem}\nIMPORTED =", 1)
    main.write_text(text)
    told = owner.run("run")
    assert owner.status("run").status == "ok"
    assert told["imported"] == told["pid"]
    assert servers(owner.process.pid) == []


def test_for_what_no_server_can_run_none_is_started(owner):
    told = owner.run("run", program=["src/steptrace/train/main.py"])
    assert owner.status("run").status == "ok"
    assert told["imported"] == told["pid"]
    assert servers(owner.process.pid) == []
