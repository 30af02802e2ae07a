"""Child trainings for the capture's tests, and a control folder of the test's own."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from steptrace.capture.control import ROOT_VARIABLE
from steptrace.cli import main

SCRIPT = Path(__file__).with_name("training.py")


class Training:
    """A child process that trains as it is told."""

    def __init__(self, folder: Path, *, captured: bool = True, env: dict[str, str] | None = None) -> None:
        self.weights = folder / "weights.pt"
        self.captures = folder / "captures"
        folder.mkdir(parents=True, exist_ok=True)
        where = str(self.captures) if captured else "none"
        self.log = (folder / "log").open("w+")
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT), str(self.weights), where],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})},
        )  # fmt: skip

    @property
    def pid(self) -> int:
        return self.process.pid

    def send(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def ready(self) -> "Training":
        assert self.answer() == "ready", self.said()
        return self

    def run(self, steps: int) -> int:
        self.send(f"run {steps}")
        return int(self.answer())

    def end(self) -> int:
        self.send("end")
        return self.process.wait(60)

    def said(self) -> str:
        self.log.seek(0)
        return self.log.read()

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        self.log.close()


@pytest.fixture(autouse=True)
def control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The control folder of this test and its children."""
    root = tmp_path / "control"
    monkeypatch.setenv(ROOT_VARIABLE, str(root))
    return root


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Training]]:
    """Starts child trainings, and ends them."""
    started: list[Training] = []

    def begin(name: str = "job", **how: object) -> Training:
        started.append(Training(tmp_path / name, **how))  # type: ignore[arg-type]
        return started[-1]

    yield begin
    for training in started:
        training.close()


@pytest.fixture
def while_stepping() -> Callable[[Sequence[str], Sequence[Training]], int]:
    """Runs a command while trainings take steps; returns its exit code."""

    def run(arguments: Sequence[str], trainings: Sequence[Training]) -> int:
        codes: list[int] = []
        command = threading.Thread(target=lambda: codes.append(main(arguments)))
        command.start()
        while command.is_alive():
            for training in trainings:
                training.send("run 5")
            for training in trainings:
                assert training.answer(), training.said()
        command.join()
        return codes[0]

    return run
