"""Programs that are started with the probe in them, each in a process of its own."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from steptrace.jobs.launch import launch
from steptrace.launch.result import Launched
from steptrace.launch.settings import LaunchSettings

FORMS = Path(__file__).with_name("forms.py")


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.fixture
def launched(tmp_path: Path) -> Callable[..., Launched]:
    """Launches a form of the small training, or another command."""

    def run(*form: str, command: Sequence[str] | None = None, **settings: object) -> Launched:
        chosen = {"warmup": 2, "steps": 4, "profile": 0, **settings}
        wanted = LaunchSettings(str(tmp_path / "probe"), **chosen)  # type: ignore[arg-type]
        return launch(command or [sys.executable, str(FORMS), *form], wanted)

    return run
