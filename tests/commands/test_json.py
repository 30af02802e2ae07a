"""What each command prints with `--json` fits its schema in docs/schemas/commands."""

import json
import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from builders import TraceBuilder, training_step
from pages import ROOT
from steptrace import cli
from steptrace.command_reference import commands
from steptrace.commands import capture
from steptrace.document_schemas import ANSWERS, answer_schema_of
from steptrace.documents.command_answers import ANSWERS_BY_KIND, CapturableProcess, CaptureAnswer, CaptureSettings
from steptrace.documents.comparison import ComparedResults
from steptrace.engine.recording import WITH_TRACE, RecordingSettings
from steptrace.exit_codes import ExitCode
from steptrace.launch.capture import ListeningProcess

REFERENCE = ROOT / "reports" / "reference" / "h100" / "masked_loss"
PROGRAM = """
import torch
model = torch.nn.Linear(4, 1)
device = "cuda" if torch.cuda.is_available() else "cpu"
model.to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(40):
    loss = model(torch.ones(2, 4, device=device)).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    loss.item()
"""


@pytest.fixture
def answer(capfd: pytest.CaptureFixture[str]) -> Any:
    """Runs a command with `--json`, checks what it prints, and returns it."""

    def run(*arguments: str, code: int = ExitCode.DONE) -> Any:
        name, *rest = arguments
        assert cli.main([name, "--json", *rest]) == code
        value = json.loads(capfd.readouterr().out)
        schema = json.loads((ROOT / "docs" / "schemas" / "commands" / f"{name}.schema.json").read_text())
        jsonschema.validate(value, schema)
        for one in value if isinstance(value, list) else [value]:
            assert one["schema_version"] >= 1
            assert one["kind"].partition("_")[0] in (name, "process")
        return value

    return run


@pytest.fixture
def trace(tmp_path: Path) -> str:
    builder = TraceBuilder()
    training_step(builder)
    return str(builder.write(tmp_path / "trace.json"))


@pytest.mark.parametrize("command", commands())
def test_every_command_has_a_schema_and_the_committed_one_is_the_one_that_is_made(command: str) -> None:
    file = ROOT / "docs" / "schemas" / "commands" / f"{command}.schema.json"
    assert json.loads(file.read_text()) == json.loads(json.dumps(answer_schema_of(command)))
    assert set(ANSWERS) == set(commands())


def test_every_answer_has_a_version_and_a_kind_of_its_own_and_its_shape_is_kept() -> None:
    kept = json.loads((ROOT / "docs" / "schemas" / "versions.json").read_text())
    for kind, answer in ANSWERS_BY_KIND.items():
        defaults = {one.name: one.default for one in msgspec.structs.fields(answer)}
        assert defaults["kind"] == kind
        assert kept[f"answer {kind}"]["version"] == defaults["schema_version"]
    printed = {one for of_command in ANSWERS.values() for one in of_command}
    assert printed == {*ANSWERS_BY_KIND.values(), ComparedResults} - {CapturableProcess} | {list[CapturableProcess]}


def test_traces(answer: Any, trace: str, tmp_path: Path) -> None:
    analyzed = answer("analyze", trace, "--out", str(tmp_path / "a"), "--excerpt", str(tmp_path / "e.json.gz"))
    assert Path(analyzed["summary"]).is_file()
    assert analyzed["excerpt"]["events"] > 0
    assert answer("analyze", trace, "--out", str(tmp_path / "a"), "--no-report")["report"] is None
    assert Path(answer("diff", trace, trace, "--out", str(tmp_path / "d"))["diff"]).is_file()


def test_results_folders_and_machines(answer: Any, tmp_path: Path) -> None:
    assert answer("compare", str(REFERENCE), str(REFERENCE))["schema_version"] >= 1
    assert all(Path(file).is_file() for file in answer("init", str(tmp_path / "mine"))["files"])
    assert answer("doctor")["usable"]
    assert answer("capture") == []


def test_a_capture(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, answer: Any) -> None:
    process = ListeningProcess(pid=7, start="1", script="train.py", since=0.0, folder=str(tmp_path))
    monkeypatch.setattr(capture, "processes", lambda: [process])
    monkeypatch.setattr(capture, "post", lambda *_: None)
    monkeypatch.setattr(capture, "wait", lambda *_: (next(iter(WITH_TRACE)), "3 steps"))
    assert answer("capture")[0]["pid"] == 7
    assert answer("capture", "7", "--out", str(tmp_path / "t"))["settings"]["steps"] == RecordingSettings().steps
    fields = {name: set(kind.__struct_fields__) for name, kind in (("p", CapturableProcess), ("s", CaptureSettings))}
    versioned = {"schema_version", "kind"}
    assert fields == {"p": {*asdict(process)} | versioned, "s": set(asdict(RecordingSettings()))}
    assert {"process", "settings"} < set(CaptureAnswer.__struct_fields__)


@pytest.mark.usefixtures("forked_programs")
def test_a_program(answer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    program = ["--", sys.executable, "train.py"]
    counts = ["--steps", "4", "--warmup", "3"]
    predicted = answer("predict", "--gpu", "H100", "--budget", "0", *counts, *program, code=ExitCode.NOT_HELD)
    assert predicted["estimate"][0]["gpu"] == "H100"
    assert answer("predict", *counts, *program)["total"] == 1
    measured = answer("run", *counts, "--profile", "1", *program)
    assert measured["predicted"]["total"] == 1
    assert measured["kinds"][0]["of"] == 4


@pytest.mark.slow
def test_a_study(answer: Any) -> None:
    assert answer("predict", "masked_loss")["variants"]


def test_the_next_command_after_init_names_its_folder_as_a_shell_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["init", "--json", "my lab's ü"]) == 0
    words = shlex.split(json.loads(capsys.readouterr().out)["next"])
    assert words == ["cd", "my lab's ü", "&&", "snakemake", "--cores", "all"]
