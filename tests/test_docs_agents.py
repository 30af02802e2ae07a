"""docs/agents.md: each workflow is run as it is written, and the keys that it names are there."""

import json
import os
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from builders import TraceBuilder, training_step
from pages import blocks
from steptrace import cli
from steptrace.exit_codes import ExitCode

PROGRAM = """
import sys
import torch

model = torch.nn.Linear(4, 1)
device = "cuda" if torch.cuda.is_available() else "cpu"
model.to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(60):
    inputs = torch.ones(2, 4, device=device)
    loss = model(inputs).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    loss.item()
"""
PAGE = "docs/agents.md"


@pytest.fixture
def run(
    forked_programs: None,  # noqa: ARG001 - replaces `sys.executable`
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
) -> Any:  # fmt: skip
    """Runs a command as the page has it, in a folder with a program; returns its exit code and the JSON it prints."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    for name in ("train.py", "ci_train.py"):
        Path(name).write_text(PROGRAM)

    def command(text: str) -> tuple[int, Any]:
        words = shlex.split(text.partition(" > ")[0])
        assert words.pop(0) == "steptrace"
        capfd.readouterr()
        code = cli.main(words)
        printed = capfd.readouterr().out
        return code, json.loads(printed) if "--json" in words else printed

    return command


def workflow(number: int) -> list[str]:
    """The commands of a workflow, one a line."""
    text = "\n".join(blocks(PAGE, "bash"))
    lines = [line for line in text.splitlines() if line]
    begins = {1: (0, 2), 2: (2, 3), 3: (3, 6), 4: (6, 7), 5: (7, 8)}
    begin, end = begins[number]
    assert len(lines) == 8
    return lines[begin:end]


def named_keys(heading: str) -> set[str]:
    """The words in code of a section of the page."""
    text = Path(__file__).parents[1].joinpath(PAGE).read_text(encoding="utf-8")
    section = text.partition(f"## {heading}")[2].partition("\n## ")[0]
    return set(re.findall(r"`([a-z_.\[\]0-9]+)`", section))


def test_find_syncs_fix_and_check(run: Any) -> None:
    find, check = workflow(1)
    code, before = run(find)
    assert (code, before["total"]) == (ExitCode.DONE, 1)
    assert {"file", "line", "code", "kind", "op", "count", "reason"} <= set(before["sites"][0])
    assert before["sites"][0]["line"] == PROGRAM.splitlines().index("    loss.item()") + 1
    assert run(check.replace("--allow train.py:15 ", ""))[0] == ExitCode.NOT_HELD
    assert run(check.replace(":15", f":{before['sites'][0]['line']}"))[0] == ExitCode.DONE


def test_read_a_trace(run: Any, tmp_path: Path) -> None:
    import gzip

    builder = TraceBuilder()
    training_step(builder)
    plain = builder.write(tmp_path / "plain.json")
    (tmp_path / "trace.json.gz").write_bytes(gzip.compress(plain.read_bytes()))
    (command,) = workflow(2)
    code, answer = run(command)
    assert code == ExitCode.DONE
    trace = json.loads(Path(answer["summary"]).read_bytes())["traces"][0]
    assert {"rule", "claim", "advice", "cost_ns_per_step", "source"} <= set(trace["findings"][0])
    assert {"sites"} <= set(trace["syncs"])
    assert trace["overview"]["parts_ns"]
    assert "warnings" in trace["quality"]
    assert list(Path("analysis", "tables", "trace0").glob("*.parquet"))


def test_compare_two_runs(run: Any) -> None:
    *runs, diff = workflow(3)
    for command in runs:
        code, answer = run(command.replace("--json", "--json --steps 4 --warmup 3 --profile 1 --no-predict"))
        assert code == ExitCode.DONE
        assert answer["step_ms"] > 0
    assert Path(run(diff)[1]["diff"]).is_file()


def test_estimate_and_hold(run: Any) -> None:
    (estimate,) = workflow(4)
    code, answer = run(estimate)
    assert code == ExitCode.DONE
    assert [entry["gpu"] for entry in answer["estimate"]] == ["H100", "L4"]
    wanted = named_keys("4. ") - {"estimate"}
    assert wanted <= set(answer["estimate"][0])
    (held,) = workflow(5)
    assert run(held)[0] == ExitCode.DONE
