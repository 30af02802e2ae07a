"""A forked program is what the interpreter would have made of the same command."""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import forked_python

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks are made on Linux alone")

SAYS = """
import atexit, os, signal, sys
atexit.register(lambda: print("at exit"))
print(sys.argv, sys.path, os.getcwd(), __name__, globals().get("__file__"), os.environ["GIVEN"], sys.stdin.read())
print([signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)], "torch" in sys.modules)
print(sorted(int(name) for name in os.listdir("/proc/self/fd"))[:3], flush=True)
print("to the other one", file=sys.stderr)
{end}
"""
Ending = tuple[int, str, str]


@pytest.fixture
def both(tmp_path: Path) -> Callable[..., list[Ending]]:
    """Runs a command as a process of its own and as a fork; returns exit code, output and last error of each."""
    environment = {**os.environ, "GIVEN": "so", "PYTHONPATH": str(tmp_path / "more")}

    def run(*arguments: str) -> list[Ending]:
        endings = []
        for python in (sys.executable, forked_python.executable(tmp_path / "python")):
            done = subprocess.run(
                [python, *arguments],
                cwd=tmp_path, env=environment, input="input", text=True, capture_output=True, check=False,
            )  # fmt: skip
            endings.append((done.returncode, done.stdout, done.stderr.splitlines()[-1]))
        return endings

    return run


@pytest.mark.parametrize(
    ("form", "end"),
    [
        *((form, "") for form in ("file", "module", "code", "unbuffered")),
        *(("file", end) for end in ("sys.exit(3)", "sys.exit('no more')", "os.kill(os.getpid(), 9)", "os._exit(5)")),
        *((form, "1 / 0") for form in ("file", "module", "code")),
    ],
)
def test_a_fork_is_as_a_process_of_its_own(both, tmp_path: Path, form: str, end: str) -> None:
    (tmp_path / "program.py").write_text(SAYS.format(end=end))
    arguments = {"file": ["program.py"], "module": ["-m", "program"], "code": ["-c", SAYS.format(end=end)]}
    alone, forked = both(*arguments.get(form, ["-u", "program.py"]), "an argument")
    assert forked == alone
    assert "so input" in alone[1]


def test_a_hook_on_imports_sees_torch(both, tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "sitecustomize.py").write_text(
        "import sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name in ('torch', 'torch.nn'): print('finds', name)\n"
        "sys.meta_path.insert(0, Finder())\n"
    )
    code = "import torch.nn; print(torch.__spec__.name, torch.ones(2).sum(), file=__import__('sys').stderr)"
    alone, forked = both("-c", code)
    assert (alone[0], forked[0], forked[2]) == (0, 0, alone[2])
    assert alone[1].splitlines()[0] == forked[1].splitlines()[0] == "finds torch"


def test_open_files_are_handed_on(tmp_path: Path) -> None:
    end, written = os.pipe()
    command = [forked_python.executable(tmp_path / "python"), "-c", f"import os; os.write({written}, b'passed')"]
    subprocess.run(command, check=True, pass_fds=[written])
    os.close(written)
    with os.fdopen(end) as file:
        assert file.read() == "passed"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 1), (signal.SIGTERM, -15), (signal.SIGKILL, -9)])
def test_a_program_ends_with_its_client(tmp_path: Path, number: signal.Signals, code: int) -> None:
    program = tmp_path / "program.py"
    program.write_text("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(300)\n")
    command = [forked_python.executable(tmp_path / "python"), program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL) as client:
        assert client.stdout is not None
        ended = os.pidfd_open(int(client.stdout.readline()))
        os.kill(client.pid, number)
        assert client.wait() == code
    assert select.select([ended], [], [], 60)[0]
    os.close(ended)
