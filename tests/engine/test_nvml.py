import threading
from types import SimpleNamespace

import pynvml
import pytest
import torch

from steptrace.engine import nvml
from steptrace.engine.nvml import NvmlSampler

GPU = torch.device("cuda", 0)


@pytest.fixture
def fake_gpu(monkeypatch):
    """An NVML that answers from a script, one entry a sample, and says when the script is over."""
    readings = [(50, 0), (100, pynvml.nvmlClocksEventReasonSwPowerCap), (90, 0)]
    state = SimpleNamespace(sample=-1, done=threading.Event(), open=0, asked_for=None)

    def rates(_):
        state.sample = min(state.sample + 1, len(readings) - 1)
        if state.sample == len(readings) - 1:
            state.done.set()
        return SimpleNamespace(gpu=readings[state.sample][0], memory=10)

    def by_uuid(uuid):
        state.asked_for = uuid
        return "handle"

    answers = {
        "nvmlInit": lambda: setattr(state, "open", state.open + 1),
        "nvmlShutdown": lambda: setattr(state, "open", state.open - 1),
        "nvmlDeviceGetHandleByUUID": by_uuid,
        "nvmlDeviceGetUtilizationRates": rates,
        "nvmlDeviceGetCurrentClocksEventReasons": lambda _: readings[state.sample][1],
        "nvmlDeviceGetComputeRunningProcesses": lambda _: ["this one", "another"],
    }
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, name, answer)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid="1234"))
    monkeypatch.setattr(nvml, "_PERIOD_S", 0)
    # The script's last reading repeats until the sampler is stopped.
    monkeypatch.setattr(nvml, "fmean", lambda values: sum(values[:3]) / 3)
    return state


def sample(state, seconds=60):
    with NvmlSampler(GPU) as sampler:
        assert state.done.wait(seconds)
    return sampler


def test_samples_become_a_mean_and_notes(fake_gpu):
    sampler = sample(fake_gpu)
    assert sampler.notes == [
        {"code": "other_processes", "figures": {"processes": 1}},
        {"code": "clocks_lowered", "figures": {"share": pytest.approx(1 / 3)}},
    ]
    assert sampler.summary() == {"utilisation_pct": 80}
    assert fake_gpu.asked_for == "GPU-1234"
    assert fake_gpu.open == 0


def test_a_figure_that_the_gpu_does_not_offer_is_left_out_with_one_note(fake_gpu, monkeypatch):
    def unsupported(_):
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    monkeypatch.setattr(pynvml, "nvmlDeviceGetComputeRunningProcesses", unsupported)
    sampler = sample(fake_gpu)
    assert sampler.summary() is not None
    figures = {"figure": "processes", "error": "Not Supported"}
    assert {"code": "nvml_figure_missing", "figures": figures} in sampler.notes


def test_without_the_library_the_run_goes_on_with_a_note(monkeypatch):
    def missing():
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", missing)
    with NvmlSampler(GPU) as sampler:
        pass
    assert sampler.summary() is None
    assert [item["code"] for item in sampler.notes] == ["nvml_unavailable"]
