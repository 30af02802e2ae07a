"""Steps of real trainings in all their forms, found without a changed line."""

import json
import shlex
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import forked_python
from steptrace.documents.probe import MeasuredStep
from steptrace.errors import LaunchError
from steptrace.launch.result import Launched, require_steps

pytestmark = pytest.mark.usefixtures("forked_programs")

FORMS = Path(__file__).with_name("forms.py")
Launch = Callable[..., Launched]


def timed(launch: Launched) -> list[MeasuredStep]:
    return [row for row in launch.ranks[0].rows if row.phase == "timed"]


def test_steps_are_found_in_all_forms() -> None:
    """Backward passes, whether it was skipped, and losses of each of six steps."""
    script = Path(__file__).with_name("find_steps.py")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True, cwd=FORMS.parent)
    by_form = json.loads(done.stdout)
    one = [1, False, 1]
    assert {form: by_form[form] for form in ("in_backward", "groups")} == {
        "in_backward": [one] * 6,
        "groups": [one] * 6,
    }
    assert by_form["gan"] == [one, one, one, *[[3, False, 3]] * 5]  # the first two before the generator has come up
    assert by_form["accumulation"] == [[2, number % 4 == 3, 2] for number in range(6)]
    assert by_form["many_batches"] == [[60, False, 60]] * 6
    assert len(by_form["lbfgs"]) == 6
    assert all(backwards == losses >= 1 for backwards, _, losses in by_form["lbfgs"])
    assert by_form["grad"] == [[0, False, 0]] * 6
    assert by_form["by_hand"] == []


@pytest.mark.parametrize("form", ["loader", "thread", "swallow", "marked", "sharded"])
def test_a_program_is_measured_and_ended(launched: Launch, capfd, form: str) -> None:
    result = launched(form)
    require_steps(result)
    assert (result.complete, result.exit_code, result.stopped) == (True, 0, None)
    rows = timed(result)
    assert len(rows) == 4
    assert all(row.step_ns > 0 and row.backwards == 1 for row in rows)
    assert [(row.batches, row.samples) for row in rows] == ([(1, 16)] * 4 if form == "loader" else [(0, 0)] * 4)
    output = capfd.readouterr().out
    assert "end of the program" not in output
    # Neither can be had where the program trains in a thread, or swallows its end.
    own = ("finally", "atexit", "signal handler")
    assert form in ("thread", "swallow") or all(f"its own {what}" in output for what in own)


def test_losses_are_those_before_scaling(launched: Launch) -> None:
    rows = timed(launched("accumulation", steps=8))
    assert [row.skipped for row in rows].count(True) == 2
    assert 0 < min(row.loss for row in rows) < 10


def test_two_ranks_under_torchrun_whose_time_is_over(launched: Launch) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    result = launched(command=[*torchrun, str(FORMS), "ranks"], warmup=5, steps=9, at_most_s=1e-9)
    require_steps(result)
    assert [len(rank.rows) for rank in result.ranks] == [2 + 5] * 2  # of the warm-up the first has no time
    noted = [rank.notes[0] for rank in result.ranks]
    assert [(item.code, item.figures["steps"]) for item in noted] == [("fewer_timed_steps", 5)] * 2
    assert [(rank.rank, rank.world_size, rank.state) for rank in result.ranks] == [
        (0, 2, "complete"), (1, 2, "complete"),
    ]  # fmt: skip
    assert result.exit_code == 0


def test_a_shell_script_and_a_module_are_commands_too(launched: Launch, tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    python = forked_python.executable(tmp_path / "python")
    script.write_text(f'cd "{FORMS.parent}"\nexec "{python}" -m forms loader\n')
    assert launched(command=["sh", str(script)]).complete


def test_a_program_that_asks_for_torch_before_it_imports_it(launched: Launch, tmp_path: Path) -> None:
    """As transformers and datasets do, here beside a finder of an old kind."""
    program = tmp_path / "train.py"
    finder = "type('Finder', (), {'find_module': lambda *_: None})()"  # without `find_spec`
    asks = f"import sys\nsys.meta_path.insert(0, {finder})\nimport importlib.util\n"
    asks += "assert importlib.util.find_spec('torch')\n"
    program.write_text(f"{asks}import runpy\nrunpy.run_path({str(FORMS)!r}, run_name='__main__')\n")
    assert launched(command=[sys.executable, str(program), "loader"]).complete


@pytest.mark.parametrize(
    ("mode", "code", "more_gpus"),
    [
        ("predict", "import torch; torch.ones(2, device='cuda:1')", True),
        ("predict", "import torch; raise ValueError('You asked for 2 GPUs, there is 1')", True),
        ("predict", "import torch; raise ImportError('no module named nothing')", False),
        ("measure", "import torch; torch.cuda.set_device(7)", False),
    ],
)
def test_more_gpus_are_offered_where_a_prediction_lacks_them(
    launched: Launch, mode: str, code: str, *, more_gpus: bool
) -> None:
    with pytest.raises(LaunchError, match="see the program's own output") as raised:
        require_steps(launched(command=[sys.executable, "-c", code], mode=mode))
    assert ("--devices N" in str(raised.value)) is more_gpus


#: It breaks the prediction before it computes.
BROKEN = "import torch; from steptrace.predict import uncomputed; uncomputed.run = None; torch.ones(2).cuda().cos()"


@pytest.mark.parametrize(
    ("mode", "arguments", "message"),
    [
        ("measure", [FORMS, "by_hand", "5"], "program ended with exit code 0: no training step was.*steptrace.step()"),
        ("measure", [FORMS, "os_exit"], "exit code 7: its process made a step and left no record"),
        ("measure", ["-I", "-c", "print('nothing')"], "steptrace was not loaded into the program"),
        ("measure", ["-S", "-c", "print('nothing')"], "steptrace was not loaded into the program"),
        ("predict", ["-c", BROKEN], r"fault of steptrace.*please report: steptrace .*TypeError.*execution\.py:"),
    ],
)
def test_the_error_for_a_program_that_left_no_steps_says_why(
    launched: Launch, mode: str, arguments: list[object], message: str
) -> None:
    with pytest.raises(LaunchError, match=f"(?s){message}"):
        require_steps(launched(command=[sys.executable, *map(str, arguments)], mode=mode))


def test_a_program_that_fails_keeps_its_exit_code_and_what_was_timed(launched: Launch, capfd) -> None:
    result = launched("raises")
    assert (result.exit_code, result.complete) == (1, False)
    assert result.ranks[0].state == "partial"
    assert len(timed(result)) == 3
    assert "ValueError: no more" in capfd.readouterr().err


#: Packages that a program's environment may lack.
ABSENT = ("steptrace", "msgspec", "psutil", "pandas", "hydra")


@pytest.fixture
def bare_python(tmp_path: Path) -> str:
    """The interpreter of an environment that has PyTorch and what it needs, and nothing else."""
    venv.create(tmp_path / "bare", with_pip=False)
    (site,) = (tmp_path / "bare").glob("lib/python3*/site-packages")
    needed = ("torch", "functorch", "torchgen", "typing_extensions.py", "filelock", "sympy", "mpmath", "networkx")
    libraries = Path(torch.__file__).parents[1]
    for name in (*needed, "jinja2", "markupsafe", "fsspec", "setuptools", "numpy", "numpy.libs"):
        if (libraries / name).exists():
            (site / name).symlink_to(libraries / name)
    return str(tmp_path / "bare" / "bin" / "python")


def test_an_environment_without_steptrace(launched: Launch, bare_python: str, monkeypatch) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    present = f"import importlib.util as i; print([name for name in {ABSENT} if i.find_spec(name)])"
    assert subprocess.run([bare_python, "-c", present], capture_output=True, check=True).stdout == b"[]\n"
    result = launched(command=[bare_python, str(FORMS), "loader"], mode="predict")
    require_steps(result)
    assert result.complete
    assert result.ranks[0].prediction.by_step == (3, 3, 3, 3)


def test_a_measurement_needs_no_more_than_pytorch(launched: Launch, tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    absent = f"import sys\nsys.modules.update(dict.fromkeys({ABSENT[1:]}))\n"
    program.write_text(f"{absent}import runpy\nrunpy.run_path({str(FORMS)!r}, run_name='__main__')\n")
    result = launched(command=[sys.executable, str(program), "loader"], profile=2)
    require_steps(result)
    assert result.complete
    assert result.ranks[0].trace.state == "recorded"


def test_a_command_that_is_not_there(launched: Launch) -> None:
    for command in ("no-such-command", "no-such-file.py", "a" * 300 + ".py"):
        with pytest.raises(LaunchError, match=f"{command}: cannot be started") as raised:
            launched(command=[command])
        assert raised.value.next_step is None


@pytest.mark.parametrize(("file", "starter"), [("train.ipynb", "jupyter execute"), ("my train.py", "python")])
def test_the_error_for_a_file_that_is_no_program_names_the_command(
    launched: Launch, tmp_path: Path, file: str, starter: str
) -> None:
    (tmp_path / file).touch()
    with pytest.raises(LaunchError, match="cannot be started") as raised:
        launched(command=[str(tmp_path / file), "--lr=1"])
    assert raised.value.next_step == f"-- {starter} {shlex.quote(str(tmp_path / file))} --lr=1"


@pytest.mark.skipif(sys.platform != "linux", reason="processes are found by /proc")
def test_nothing_that_a_program_has_started_is_left(launched: Launch, capfd) -> None:
    assert launched(command=[forked_python.PYTHON, str(FORMS), "leaves_processes"]).complete
    left = [int(line.split()[1]) for line in capfd.readouterr().out.splitlines() if line.startswith("left")]
    assert len(left) == 2
    assert not any(Path(f"/proc/{pid}").exists() for pid in left)


def test_output_is_the_programs_own(launched: Launch, capfd) -> None:
    assert launched("noisy", steps=40, warmup=10).complete
    assert len(capfd.readouterr().out) > 49 * 2_000_000


def test_its_own_sitecustomize_still_runs(launched: Launch, tmp_path: Path, monkeypatch, capfd) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("print('its own sitecustomize')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "own"))
    assert launched("loader").complete
    assert "its own sitecustomize" in capfd.readouterr().out


def test_a_program_that_profiles_itself_is_timed_all_the_same(launched: Launch) -> None:
    result = launched("own_profiler", profile=2)
    assert result.complete
    assert result.ranks[0].trace.state == "refused"
    assert "a profiler is already recording" in result.ranks[0].trace.message
