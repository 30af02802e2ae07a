"""A study whose variants are commands: what its file comes to, when it runs again, and its prediction.

One is run in tests/workflow/test_workflow_installed.py.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import forked_python
from steptrace.cli import main as steptrace_main
from steptrace.config.plan import Plan, make_plan
from steptrace.errors import ConfigError
from steptrace.jobs import command_checks
from variant_runs import command_config

ROOT = Path(__file__).parents[2]
TRAIN = """
import sys
import torch
from torch import nn

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=float(sys.argv[1]) if len(sys.argv) > 1 else 1e-2)
inputs, total = torch.randn(32, 8).to(device), 0.0
for _ in range(500):
    optimizer.zero_grad()
    loss = model(inputs).square().mean()
    loss.backward()
    optimizer.step()
    total += loss.item()
"""
STUDY = """
title: Without reading the loss
baseline: main
program:
  command: [{python}, train.py]
  cwd: repository
  warmup: 2
  steps: 4
  profile: 2
  predicted_steps: 2
  compared_steps: 2
variants:
  main: []
  faster: {{cwd: faster}}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working directory with a program in `repository`, and in `faster` the same without its `.item()`."""
    faster = TRAIN.replace("total += loss.item()", "total += loss.detach()")
    for name, text in (("repository", TRAIN), ("faster", faster)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.py").write_text(text)
    return tmp_path


@pytest.fixture
def planned(folder: Path) -> Callable[..., Plan]:
    """Plans the study under some text of its file."""

    def plan(text: str = STUDY, scale: str = "cpu", python: str = sys.executable) -> Plan:
        file = folder / "config" / "study" / "speed.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text.format(python=python))
        return make_plan(ROOT, folder, {"studies": ["speed"], "scale": scale, "repeats": 1})

    return plan


def digests(plan: Plan) -> dict[str, str]:
    return {name: plan.key("training", study, name).split()[0] for study, name in plan.variants}


def test_a_variant_is_a_command_with_its_place(planned: Callable[..., Plan]) -> None:
    plan = planned()
    config = plan.variants["speed", "faster"].config
    assert config["program"]["command"] == [sys.executable, "train.py"]
    assert config["program"]["cwd"] == "faster"
    assert plan.variants["speed", "main"].config["program"]["cwd"] == "repository"
    assert config["scale"] == {"name": "cpu", "warmup_steps": 2, "timed_steps": 4, "at_most_s": 20}
    assert plan.variants["speed", "faster"].overrides == ("cwd=faster",)
    assert len(set(digests(plan).values())) == 2


def test_arguments_environment_scales_and_a_matrix(planned: Callable[..., Plan]) -> None:
    text = STUDY.replace("train.py]", 'train.py, "{{rate}}", "{{seed}}"]')
    text += "  more:\n    arguments: [--more]\n    env: {{A: 1}}\n    hypothesis: it is slower\n"
    text += "matrix: {{rate: [0.1, 0.2]}}\nscales: {{cpu: [--cpu], gpu: [--gpu]}}\n"
    plan = planned(text)
    assert [name for _, name in plan.variants][:3] == ["main__rate-0.1", "faster__rate-0.1", "more__rate-0.1"]
    more = plan.variants["speed", "more__rate-0.2"]
    assert more.config["program"]["command"][1:] == ["train.py", "0.2", "{seed}", "--cpu", "--more"]
    assert more.on_gpu.config["program"]["command"][-2:] == ["--gpu", "--more"]
    assert more.config["program"]["env"] == {"A": "1"}
    assert more.overrides == ("A=1", "--more", "rate=0.2")


def test_a_matrix_may_name_the_folder(planned: Callable[..., Plan]) -> None:
    text = STUDY.replace("cwd: repository", 'cwd: "{{code}}"').replace("  faster: {{cwd: faster}}\n", "")
    plan = planned(text + "matrix: {{code: [repository, faster]}}\n")
    folders = [plan.variants["speed", name].config["program"]["cwd"] for _, name in plan.variants]
    assert folders == ["repository", "faster"]


def test_an_edit_runs_a_program_again_if_it_executes_the_file(planned: Callable[..., Plan], folder: Path) -> None:
    repository = folder / "repository"
    before = digests(planned())
    for name, text in {
        "train.py": TRAIN + "# a comment\n", "NOTES.md": "tried", "unused.py": "value = 1\n", "other.yaml": "rate: 1\n",
    }.items():  # fmt: skip
        (repository / name).write_text(text)
    assert digests(planned()) == before
    (repository / "train.py").write_text(TRAIN + "edited = 1\n")
    assert digests(planned()) != before


def test_what_a_program_imports_and_names_is_part_of_it(planned: Callable[..., Plan], folder: Path) -> None:
    text = STUDY.replace("train.py]", "train.py, --deepspeed=ds_config.json]")
    repository = folder / "repository"
    (repository / "train.py").write_text(
        "from model import net\nCONFIG = 'conf'\nexec(open('executed.py').read())\n" + TRAIN
    )
    files = {
        "model/__init__.py": "", "model/net.py": "import library\n", "src/library.py": "", "library.py": "value = 1\n",
        "conf/base.yaml": "rate: 1\n", "ds_config.json": "{}", "executed.py": "value = 1\n",
    }  # fmt: skip
    for file, content in files.items():
        (repository / file).parent.mkdir(exist_ok=True)
        (repository / file).write_text(content)
    before = digests(planned(text))["main"]
    for file in files.keys() - {"src/library.py"}:
        (repository / file).write_text(f"{files[file]}[2]\n" if file.endswith(".py") else "[2]\n")
        after = digests(planned(text))["main"]
        assert after != before, file
        before = after


def test_a_command_without_python_code_depends_on_its_whole_folder(planned: Callable[..., Plan], folder: Path) -> None:
    text = STUDY.replace("[{python}, train.py]", "[sh, run.sh]").replace("cwd: repository", "cwd: .")
    for where in (folder, folder / "faster"):
        (where / "run.sh").write_text("python repository/train.py\n")
    before = digests(planned(text))
    (folder / "results").mkdir(exist_ok=True)
    (folder / "results" / "comparison.json").write_text("{}")  # the workflow's own
    assert digests(planned(text)) == before
    (folder / "repository" / "notes.txt").write_text("may be read")
    assert digests(planned(text))["main"] != before["main"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("cwd: faster", "cwd: fister", "fister does not exist"),
        ("cwd: repository", "cwd: nowhere", "nowhere does not exist"),
        ("{{cwd: faster}}", "{{overrides: [loss=where]}}", "unknown field `overrides`"),
        ("variants:", "matrix: {{rate: [1]}}\nvariants:", "the command does not use the matrix's 'rate'"),
        ("variants:", "reference: [loss=where]\nvariants:", "a study of commands has no reference"),
        ("steps: 4", "steps: 1", "at `program.steps`"),
        ("steps: 4", "ranks: 0", "at `program.ranks`"),
        ("compared_steps", "comparedsteps", "did you mean 'compared_steps'?"),
    ],
)
def test_mistakes_are_errors(planned: Callable[..., Plan], old: str, new: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        planned(STUDY.replace(old, new))


@pytest.mark.usefixtures("forked_programs")
def test_a_program_that_fails_partway_has_no_prediction(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [sys.executable, str(ROOT / "tests" / "launch" / "forms.py"), "reads_and_raises"]
    config = command_config("main", command, cwd=str(tmp_path))
    (tmp_path / "config.yaml").write_text(json.dumps(config))
    assert command_checks.main(["predict", "--config", str(tmp_path / "config.yaml"), "--out", str(tmp_path)]) == 2
    assert "exit code 1" in capsys.readouterr().err
    assert not (tmp_path / "prediction.json").exists()


@pytest.mark.usefixtures("forked_programs")
def test_predict_follows_the_commands_of_a_study(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "config" / "study").mkdir(parents=True)
    (folder / "config" / "study" / "own.yaml").write_text(
        STUDY.format(python=forked_python.executable(folder / "python"))
    )
    monkeypatch.chdir(folder)
    assert steptrace_main(["predict", "--json", "--gpu", "H100", "own"]) == 0
    main, faster = json.loads(capsys.readouterr().out)["variants"]
    assert (main["name"], main["prediction"]["total"]) == ("main", 1)
    assert (faster["name"], faster["prediction"]["total"]) == ("faster", 0)
    (estimate,) = main["prediction"]["estimate"]
    assert estimate["covered_pct"] == 100
    assert [copy["file"] for copy in estimate["assumed"]] == ["train.py"]
    assert steptrace_main(["predict", "--batch", "8", "own"]) == 2
    assert "--batch" in capsys.readouterr().err
