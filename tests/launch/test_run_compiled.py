"""Programs that compile, measured: their graph breaks, recompilations and compile times."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from steptrace.cli import main
from steptrace.launch.result import Launched

#: A compiled function; the batch is smaller in every third step.
COMPILED = """
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
@torch.compile(backend="aot_eager", dynamic=False)
def loss_of(x):
    loss = model(x).square().mean()
    print(end="")
    return loss
for step in range(12):
    optimizer.zero_grad()
    loss_of(torch.ones(3 if step % 3 else 2, 4)).backward()
    optimizer.step()
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    file = tmp_path / "train.py"
    file.write_text(COMPILED)
    return file


def test_the_record_of_a_rank_says_what_was_compiled(launched: Callable[..., Launched], program: Path) -> None:
    (rank,) = launched(command=[sys.executable, str(program)]).ranks
    assert rank.compiled is not None
    (broken,) = rank.compiled.breaks
    assert (broken.file, broken.line, broken.code) == ("train.py", 8, 'print(end="")')
    sizes = [one for one in rank.compiled.recompilations if one.compiled_line == 5]
    assert [(one.kind, one.value, one.dimension, one.recompilations) for one in sizes] == [("size", "x", 0, 1)]
    assert rank.compiled.compile_ns > 0


def test_a_program_that_compiles_nothing_has_no_such_record(launched: Callable[..., Launched]) -> None:
    (rank,) = launched("plain").ranks
    assert rank.compiled is None


@pytest.mark.usefixtures("program", "forked_programs")
def test_run_shows_and_keeps_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    counts = ["--warmup", "3", "--steps", "3", "--profile", "1"]
    assert main(["run", "--no-predict", "--json", *counts, "--out", "out", "--", sys.executable, "train.py"]) == 0, (
        capfd.readouterr().err
    )
    answer = json.loads(capfd.readouterr().out)
    (broken,) = answer["compiled"]["breaks"]
    assert (broken["file"], broken["line"]) == ("train.py", 8)
    assert json.loads((tmp_path / "out/run0/run.json").read_text())["compiled"] == answer["compiled"]
    (trace,) = json.loads((tmp_path / "out/summary.json").read_text())["traces"]
    assert {"graph_breaks"} <= {one["rule"] for one in trace["findings"]}
    page = (tmp_path / "out/report.html").read_text()
    assert "Graph breaks" in page
    assert "train.py:8" in page


def test_steps_count_while_another_thread_compiles(launched: Callable[..., Launched], tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    # PyTorch has this flag for the whole process. A test that compiled in a thread would depend on the thread's times.
    file.write_text(COMPILED.replace("for step in", "torch.compiler._is_compiling_flag = True\nfor step in", 1))
    (rank,) = launched(command=[sys.executable, str(file)]).ranks
    assert rank.steps_seen > 1


COMPILED_UPDATES = pytest.mark.parametrize(
    "lines",
    [
        # The optimizer's step by itself, a function that calls it, and all of a step.
        "step = torch.compile(optimizer.step, backend='eager')\ndef train(x):\n    loss_of(x).backward()\n    step()",
        """@torch.compile(backend='eager')
def step():
    optimizer.step()
def train(x):
    loss_of(x).backward()
    step()""",
        "@torch.compile(backend='eager')\ndef train(x):\n    loss_of(x).backward()\n    optimizer.step()",
    ],
    ids=["step", "function", "whole"],
)


def with_compiled_update(tmp_path: Path, lines: str) -> list[str]:
    """The command of a program of which `lines` compile the update."""
    file = tmp_path / "train.py"
    file.write_text(
        "import torch\nmodel = torch.nn.Linear(4, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        f"def loss_of(x):\n    return model(x).square().mean()\n{lines}\n"
        "for step_number in range(12):\n    optimizer.zero_grad()\n    train(torch.ones(2, 4))\n"
    )
    return [sys.executable, str(file)]


@COMPILED_UPDATES
def test_steps_count_whose_update_is_compiled(launched: Callable[..., Launched], tmp_path: Path, lines: str) -> None:
    (rank,) = launched(command=with_compiled_update(tmp_path, lines)).ranks
    assert rank.steps_seen > 1
    assert rank.compiled is not None
    ours = "steptrace/"
    assert not [found for found in rank.compiled.breaks if ours in found.file]
    assert not [found for found in rank.compiled.functions if ours in found.file]
    # PyTorch's optimizers break a graph. Our functions, which no graph may hold, are no break of the program's.
    assert not [found for found in rank.compiled.breaks if "compiler.disable" in found.kind]


@COMPILED_UPDATES
def test_the_outputs_of_a_program_whose_update_is_compiled_are_recorded(
    launched: Callable[..., Launched], tmp_path: Path, lines: str
) -> None:
    (rank,) = launched(command=with_compiled_update(tmp_path, lines), mode="outputs", warmup=0, steps=3).ranks
    assert [len(step.gradients) for step in rank.outputs] == [1, 1, 1]
    assert all(step.loss is not None for step in rank.outputs)


#: An optimizer whose step may be one graph: PyTorch's other optimizers end graphs themselves.
IN_ONE_GRAPH = """
import torch
from torch._dynamo.utils import counters
model = torch.nn.Linear(4, 1, bias=False)
optimizer = torch.optim.Muon([model.weight], lr=0.1)
other = torch.optim.Muon([torch.nn.Parameter(torch.ones(2, 2))], lr=0.1)
{lines}
for _ in range(12):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).square().mean().backward()
    step()
    assert counters["stats"]["unique_graphs"] == 1
"""


IN_ONE_GRAPH_FORMS = pytest.mark.parametrize(
    "lines",
    [
        "step = torch.compile(optimizer.step, backend='eager', fullgraph=True)",
        "@torch.compile(backend='aot_eager', fullgraph=True)\ndef step():\n    optimizer.step()",
        "@torch.compile(backend='eager', fullgraph=True)\ndef step():\n    optimizer.step()\n    other.step()",
    ],
    ids=["method", "function", "two"],
)


@IN_ONE_GRAPH_FORMS
def test_a_graph_that_may_not_end_counts_the_steps_of_its_optimizers(
    launched: Callable[..., Launched], tmp_path: Path, lines: str
) -> None:
    file = tmp_path / "train.py"
    file.write_text(IN_ONE_GRAPH.format(lines=lines))
    result = launched(command=[sys.executable, str(file)])
    assert result.exit_code == 0
    (rank,) = result.ranks
    assert rank.steps_seen > 1
    assert rank.compiled is None or rank.compiled.breaks == ()


def test_the_gradients_before_an_update_in_one_graph_are_recorded(
    launched: Callable[..., Launched], tmp_path: Path
) -> None:
    file = tmp_path / "train.py"
    file.write_text(IN_ONE_GRAPH.format(lines="step = torch.compile(optimizer.step, backend='eager', fullgraph=True)"))
    command = [sys.executable, str(file)]
    (rank,) = launched(command=command, mode="outputs", warmup=0, steps=3).ranks
    assert [len(step.gradients) for step in rank.outputs] == [1, 1, 1]
    assert all(step.loss is not None for step in rank.outputs)
