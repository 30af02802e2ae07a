"""`steptrace predict --breaks N`: a budget of graph breaks."""

import json
import sys
from pathlib import Path

import pytest
import torch

from steptrace.cli import main
from steptrace.predict import captured
from steptrace.torch_names import release_of

pytestmark = [
    pytest.mark.skipif(
        release_of(torch.__version__) < captured._OLDEST, reason="finding graph breaks takes PyTorch 2.13"
    ),
    pytest.mark.usefixtures("forked_programs"),
]

PROGRAM = """
import torch

model = torch.nn.Linear(4, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

@torch.compile
def loss_of(x):
    loss = model(x).square().mean()
    BREAK
    return loss * 2

for _ in range(12):
    optimizer.zero_grad()
    loss_of(torch.ones(2, 4, device="cuda")).backward()
    optimizer.step()
"""


def write(folder: Path, text: str) -> list[str]:
    path = folder / "train.py"
    path.write_text(text)
    return ["--", sys.executable, str(path)]


def test_a_graph_break_is_over_a_budget_of_none_at_its_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    command = write(tmp_path, PROGRAM.replace("BREAK", "value = loss.item()"))
    assert main(["predict", "--breaks", "0", *command]) == 1
    line = PROGRAM.splitlines().index("    BREAK") + 1
    error = capfd.readouterr().err
    assert "1 graph break, at most 0" in error
    assert f"train.py:{line}" in error
    assert main(["predict", "--breaks", "1", *command]) == 0


def test_budgets_and_why_they_are_not_held_are_in_the_answer(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def budgets(text: str, *options: str) -> list[tuple[object, ...]]:
        main(["predict", "--json", *options, *write(tmp_path, text)])
        answer = json.loads(capfd.readouterr().out)
        return [(one["option"], one["most"], one["found"], one["is_held"], one["reasons"]) for one in answer["budgets"]]

    options = ("--budget", "1", "--breaks", "0", "--recompilations", "2")
    assert budgets(PROGRAM.replace("BREAK", "value = loss.item()"), *options) == [
        ("budget", 1, 1, True, []),
        ("breaks", 0, 1, False, ["too_many"]),
        ("recompilations", 2, 0, True, []),
    ]
    uncompiled = PROGRAM.replace("@torch.compile\n", "").replace("BREAK", "pass")
    assert budgets(uncompiled, "--breaks", "3") == [("breaks", 3, None, False, ["nothing_compiled"])]
    named = PROGRAM.replace("(x):", "(x, name):").replace("BREAK", "loss = loss * len(name)").replace("for _", "for k")
    named = named.replace('device="cuda")).', 'device="cuda"), "a" * k).')
    assert budgets(named, "--steps", "10", "--recompilations", "1") == [
        ("recompilations", 1, 7, False, ["too_many", "limit_reached"])
    ]


def test_code_in_one_graph_holds_the_budget(tmp_path: Path) -> None:
    assert main(["predict", "--breaks", "0", *write(tmp_path, PROGRAM.replace("BREAK", "pass"))]) == 0


def test_code_that_is_compiled_again_is_over_a_budget_of_recompilations_at_its_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    grows = PROGRAM.replace("BREAK", "pass").replace("range(12)", "range(2, 14)").replace("ones(2, 4", "ones(k, 4")
    command = write(tmp_path, grows.replace("for _ in", "for k in"))
    assert main(["predict", "--recompilations", "0", *command]) == 1
    error = capfd.readouterr().err
    assert "1 recompilation, at most 0" in error
    assert "`x`" in error
    assert "from 2 to 3" in error
    assert main(["predict", "--recompilations", "1", *command]) == 0


def test_a_graph_break_ends_a_program_that_asks_for_one_graph(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    asked = PROGRAM.replace("@torch.compile", "@torch.compile(fullgraph=True)").replace("BREAK", "value = loss.item()")
    assert main(["predict", "--breaks", "0", *write(tmp_path, asked)]) == 2
    error = capfd.readouterr().err
    assert f'train.py", line {PROGRAM.splitlines().index("    BREAK") + 1}' in error
    assert "Unsupported Tensor.item() call" in error
    assert "at fault" not in error


def test_a_program_that_compiles_nothing_holds_no_budget_of_breaks(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command = write(tmp_path, PROGRAM.replace("@torch.compile\n", "").replace("BREAK", "pass"))
    assert main(["predict", "--breaks", "0", *command]) == 1
    assert "nothing is compiled" in capfd.readouterr().err


def test_breaks_that_pytorch_s_optimizers_ask_for_are_within_any_budget(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    called = PROGRAM.replace("BREAK", "pass").replace("optimizer.step()", "update()")
    alone = called.replace("for _ in", "update = torch.compile(optimizer.step)\nfor _ in")
    inside = called.replace("for _ in", "@torch.compile\ndef update():\n    optimizer.step()\n    BREAK\nfor _ in")
    assert main(["predict", "--breaks", "0", "--json", *write(tmp_path, alone)]) == 0
    breaks = [one for code in json.loads(capfd.readouterr().out)["compiled"] for one in code["breaks"]]
    assert [(one["by_pytorch"], one["file"].startswith("torch/optim/")) for one in breaks] == [(True, True)]
    assert main(["predict", "--breaks", "0", *write(tmp_path, inside.replace("BREAK", "pass"))]) == 0
    # The program's own breaks in the same code count.
    asked = inside.replace("BREAK", "torch._dynamo.graph_break()")
    assert main(["predict", "--breaks", "0", *write(tmp_path, asked)]) == 1
    error = capfd.readouterr().err
    assert "1 graph break, at most 0" in error
    assert f"train.py:{asked.splitlines().index('    torch._dynamo.graph_break()') + 1}" in error
