"""A forked program is what the interpreter would have made of the same command."""

import ctypes
import os
import select
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

import forked_python

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="forks are made on Linux alone"),
    pytest.mark.usefixtures("forked_programs"),
]

TELLS = """
import atexit, os, signal, sys
atexit.register(lambda: print("at exit"))
print(sys.argv, sys.path, sys.orig_argv, os.getcwd(), __name__, globals().get("__file__"), os.environ["TOLD"])
print(sys.stdin.read(), signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT), os.getsid(0) == os.getpid())
print(sorted(int(name) for name in os.listdir("/proc/self/fd"))[:3], os.getppid(), "torch" in sys.modules)
print("to the other one", file=sys.stderr)
{end}
"""


@pytest.fixture
def both(tmp_path: Path) -> object:
    """Runs a command as a process of its own and as a fork; returns exit code, output and last line of each."""
    environment = {**os.environ, "TOLD": "so", "PYTHONPATH": str(tmp_path / "more")}

    def run(*arguments: str, start_new_session: bool = False) -> list[tuple[int, str, str]]:
        found = []
        for kind in (forked_python._Popen, forked_python.ForkedPopen):
            process = kind(
                [sys.executable, *arguments],
                cwd=tmp_path, env=environment, text=True, start_new_session=start_new_session,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=partial(os.nice, 0),
            )  # fmt: skip
            out, err = process.communicate("given")
            found.append((process.returncode, out, err.splitlines()[-1]))
        return found

    return run


@pytest.mark.parametrize("form", ["file", "module", "code", "unbuffered"])
@pytest.mark.parametrize(
    "end",
    ["", "sys.exit(3)", "sys.exit('no more')", "1 / 0", "sys.stdout.flush(); os.kill(os.getpid(), 9)", "os._exit(5)"],
)
def test_a_fork_is_as_a_process_of_its_own(both, tmp_path: Path, form: str, end: str) -> None:
    (tmp_path / "program.py").write_text(TELLS.format(end=end))
    arguments = {"file": ["program.py"], "module": ["-m", "program"], "code": ["-c", TELLS.format(end=end)]}
    alone, forked = both(*arguments.get(form, ["-u", "program.py"]), "an argument", start_new_session=form == "code")
    assert forked == alone
    assert "so" in alone[1] or end == "os._exit(5)"  # with which is lost what was not flushed


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


@pytest.mark.parametrize(("end", "code"), [("sys.exit(3)", 3), ("os.kill(os.getpid(), 9)", -9)])
def test_an_interpreter_s_program_is_as_its_own(tmp_path: Path, end: str, code: int) -> None:
    program = tmp_path / "program.py"
    told, tell = os.pipe()
    program.write_text(
        "import os, sys\nprint(input(), sys.argv, os.getcwd(), os.environ['A'], flush=True)\n"
        f"os.write({tell}, b'passed')\n{end}\n"
    )
    command = [forked_python.interpreter(tmp_path / "python"), "program.py", "an argument"]
    done = subprocess.run(
        command,
        cwd=tmp_path, env={"A": "a"}, input="given\n", stdout=subprocess.PIPE, text=True, check=False, pass_fds=[tell],
    )  # fmt: skip
    os.close(tell)
    with os.fdopen(told) as file:
        assert file.read() == "passed"
    assert done.stdout == f"given ['program.py', 'an argument'] {tmp_path} a\n"
    assert done.returncode == code


def test_a_fork_whose_owner_is_gone_ends() -> None:
    code = "import forked_python as f; f._ADOPTED_WITHIN_S = 0; f._become({}, [], 1 << 30)"
    here = str(Path(__file__).parent)
    ended = forked_python._Popen([sys.executable, "-c", code], cwd=here, stderr=subprocess.PIPE, text=True)
    assert "process 1073741824, which wanted this one, is gone" in ended.communicate(timeout=60)[1]
    assert ended.returncode == 1


def test_later_orphans_are_not_adopted() -> None:
    adopts = ctypes.c_int(-1)
    with forked_python.instead_of_processes():
        subprocess.run([sys.executable, "-c", ""], check=True)
    ctypes.CDLL(None).prctl(37, ctypes.byref(adopts), 0, 0, 0)  # PR_GET_CHILD_SUBREAPER
    assert adopts.value == 0


def test_a_program_ends_with_its_interpreter(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(300)\n")
    command = [forked_python.interpreter(tmp_path / "python"), program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        ended = os.pidfd_open(int(client.stdout.readline()))
        client.kill()
    assert select.select([ended], [], [], 60)[0]
    os.close(ended)
