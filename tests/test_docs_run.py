"""What the documents tell a reader to write or to type is done, as it stands there, on small inputs.

What takes a study is done elsewhere: the tutorial in tests/workflow/test_workflow_installed.py, the YAML of how-to
pages in tests/config/test_documents.py, programs in tests/launch, captures in tests/capture.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from builders import TraceBuilder, training_step
from mnist_script import write_mnist
from pages import ROOT, blocks
from steptrace.cli import main

pytestmark = pytest.mark.usefixtures("forked_programs")

#: What a page's snippet takes for granted: the reader's model, data and step.
READERS = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
device = "cuda"
digits = TensorDataset(torch.zeros(128, 4), torch.zeros(128, dtype=torch.long))
loader = DataLoader(digits, batch_size=64)
batch = next(iter(loader))
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
running_loss, correct = 0.0, 0
def train_step(model=model, batch=batch):
    images, labels = (part.to(device) for part in batch)
    loss = nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    loss.item()
train_on = lambda batch: None
"""


@pytest.fixture(autouse=True)
def _python_of_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """`python main.py`, as pages write it, is the interpreter that runs the tests."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


def run(code: str, cwd: Path) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_readers_own_step_is_predicted(tmp_path: Path) -> None:
    """README and syncs.md: a loss that is read, and two copies from memory that is not pinned."""
    for page in ("README.md", "docs/syncs.md"):
        output = run(f"{READERS}\n{blocks(page, 'python')[0]}", tmp_path)
        assert output.startswith("3\n" if page == "README.md" else "3 ")


def test_the_tutorial_s_script_waits_where_the_tutorial_says(tmp_path: Path) -> None:
    page = "docs/tutorial-program.md"
    (change,) = blocks(page, "python")
    before, after = blocks(page, "console")
    for session in (before, after):
        command, *expected = session.splitlines()
        if session is before:
            write_mnist(tmp_path / "main.py")
        else:
            write_mnist(tmp_path / "main.py", change)
        done = subprocess.run(
            [sys.executable, "-m", "steptrace.cli", *shlex.split(command)[2:]],
            cwd=tmp_path, capture_output=True, text=True, check=True,
        )  # fmt: skip
        shown = [line for line in done.stdout.splitlines() if not re.match(r"Train Epoch|  operators per step: ", line)]
        assert shown == expected
    # The budget that it then gives allows the one line that is left.
    (allowed,) = re.findall(r"^steptrace predict --budget 0 --allow (\S+) --", (ROOT / page).read_text(), re.MULTILINE)
    assert re.findall(r" aten::\S+ .* (main\.py:\d+) ", after) == [allowed]


def test_loaders_are_timed_as_input_md_says(tmp_path: Path) -> None:
    assert run(f"{READERS}\n{blocks('docs/input.md', 'python')[0]}", tmp_path).count("BatchTimes(fetch_ns=") == 2


def test_a_program_of_syncs_md_passes_its_gate_and_one_that_waits_does_not(tmp_path: Path) -> None:
    text = blocks("docs/syncs.md", "python")[1]
    waits = text.replace("    optimizer.step()\n", "    optimizer.step()\n" + "    loss.item()\n" * 3)
    (tmp_path / "ci_train.py").write_text(text)
    (tmp_path / "waits.py").write_text(waits)
    line = waits.splitlines().index("    loss.item()") + 1

    def predict(file: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "steptrace.cli", "predict", *arguments, "--", sys.executable, file]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert predict("ci_train.py", "--budget", "0").returncode == 0
    over = predict("waits.py", "--budget", "0")
    assert (over.returncode, over.stdout.count("loss.item()")) == (1, 3)
    assert predict("waits.py", "--budget", "2", "--allow", f"waits.py:{line}").returncode == 0


@pytest.fixture
def traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("trace", "before", "after"):
        builder = TraceBuilder()
        training_step(builder)
        builder.write(tmp_path / f"{name}.json.gz")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_what_readme_does_with_a_trace(traces: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    typed = re.findall(r"`steptrace ((?:analyze|diff) [^`]*)`", text)
    of_traces = [words for words in typed if ".pickle" not in words]  # docs/memory.md has those of snapshots
    assert len(of_traces) == 2
    for words in of_traces:
        assert main(words.split()) in (0, 1), capsys.readouterr().err
    assert (traces / "trace-analysis" / "report.html").is_file()
    assert (traces / "before-after-diff" / "diff.json").is_file()
