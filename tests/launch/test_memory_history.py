"""An error of the recorded history of GPU memory does not reach the program, whose own error it could replace."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from steptrace.launch.memory_history import MemoryHistory


@pytest.mark.parametrize("broken", ["_record_memory_history", "_dump_snapshot"])
def test_the_program_s_first_use_of_a_gpu_and_its_out_of_memory_error_stay_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, broken: str
) -> None:
    at_first_use: list[Callable[[], None]] = []
    at_out_of_memory: list[Callable[..., None]] = []

    def fail(*_: Any, **__: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(torch.cuda, "_lazy_call", at_first_use.append)
    for name in ("_record_memory_history", "_dump_snapshot"):
        monkeypatch.setattr(torch.cuda.memory, name, fail if name == broken else lambda *_, **__: None)
    watch = at_out_of_memory.append
    monkeypatch.setattr(torch._C, "_cuda_attach_out_of_memory_observer", watch, raising=False)
    MemoryHistory(tmp_path)
    at_first_use.pop()()
    for failed in at_out_of_memory:
        failed(0, 1, 2, 3)
    assert "no space left" in caplog.text
    assert list(tmp_path.iterdir()) == []
