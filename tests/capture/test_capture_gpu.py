"""A capture on a GPU has the steps' kernels, and costs a job that uses none of its GPU nothing of it."""

import json
import os

import pytest
import torch

from steptrace.analysis.build import summarize
from steptrace.engine.recording import RecordingSettings, Request
from steptrace.launch import capture as capture_mode
from steptrace.launch.capture import processes


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_each_step_of_a_capture_has_its_kernels(tmp_path, monkeypatch):
    monkeypatch.setattr(capture_mode, "_LOOK_NS", 0)
    monkeypatch.setenv("STEPTRACE_FOLDER", str(tmp_path / "user"))
    weights = torch.randn(256, 256, device="cuda")
    listener = capture_mode.Listener(str(tmp_path / "captures"))
    listener.step()
    (entry,) = processes()
    assert entry.pid == os.getpid()
    for name in "12":
        entry.post(Request(name, str(tmp_path / name), RecordingSettings(steps=3, warmup=2)))
        for _ in range(8):
            (weights @ weights).sum().item()
            listener.step()
        assert json.loads((tmp_path / name / "capture.json").read_text())["state"] == "recorded"
    listener.close()
    summary, _ = summarize([tmp_path / "1", tmp_path / "2"])
    for trace in summary.traces:
        assert trace.kernels_per_step >= 2
        assert trace.syncs.per_step == 1.0
        assert trace.device_name == torch.cuda.get_device_name()
