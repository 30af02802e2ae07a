import threading
from types import SimpleNamespace

import pynvml
import pytest
import torch

from steptrace.engine.nvml import NvmlSampler

GPU = torch.device("cuda", 0)


@pytest.fixture
def fake_gpu(monkeypatch):
    """An NVML that answers from a script, one entry a sample, and says when the script is over."""
    readings = [(50, 1000, 60, 0), (100, 1500, 70, pynvml.nvmlClocksEventReasonSwPowerCap), (90, 1400, 65, 0)]
    state = SimpleNamespace(sample=-1, done=threading.Event(), open=0, asked_for=None)

    def rates(_):
        state.sample = min(state.sample + 1, len(readings) - 1)
        if state.sample == len(readings) - 1:
            state.done.set()
        return SimpleNamespace(gpu=readings[state.sample][0], memory=10)

    def by_uuid(uuid):
        state.asked_for = uuid
        return "handle"

    def clock(_, kind):
        return readings[state.sample][1] if kind == pynvml.NVML_CLOCK_SM else 2600

    answers = {
        "nvmlInit": lambda: setattr(state, "open", state.open + 1),
        "nvmlShutdown": lambda: setattr(state, "open", state.open - 1),
        "nvmlDeviceGetHandleByUUID": by_uuid,
        "nvmlDeviceGetUtilizationRates": rates,
        "nvmlDeviceGetClockInfo": clock,
        "nvmlDeviceGetTemperature": lambda *_: readings[state.sample][2],
        "nvmlDeviceGetPowerUsage": lambda _: 400_000,
        "nvmlDeviceGetCurrentClocksEventReasons": lambda _: readings[state.sample][3],
        "nvmlDeviceGetComputeRunningProcesses": lambda _: ["this one", "another"],
    }
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, name, answer)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid="1234"))
    return state


def sample(state, seconds=10):
    with NvmlSampler(GPU, period_s=0) as sampler:
        assert state.done.wait(seconds)
    return sampler


def test_samples_become_means_extremes_and_shares(fake_gpu):
    sampler = sample(fake_gpu)
    summary = sampler.summary()
    assert sampler.warnings == ["another process used the GPU meanwhile: step times may be longer for it"]
    assert fake_gpu.asked_for == "GPU-1234"
    assert fake_gpu.open == 0
    more = int(summary["samples"]) - 3  # the last reading repeats until the sampler is stopped
    assert summary["utilisation_pct"] == pytest.approx((50 + 100 + 90 + more * 90) / (3 + more))
    assert summary["sm_clock_mhz"] == pytest.approx((1000 + 1500 + 1400 * (1 + more)) / (3 + more))
    assert summary["power_throttled_share"] == pytest.approx(1 / (3 + more))
    assert summary["sm_clock_min_mhz"] == 1000
    assert summary["memory_clock_mhz"] == 2600
    assert summary["temperature_max_c"] == 70
    assert summary["power_w"] == 400
    assert summary["thermal_throttled_share"] == summary["hardware_slowdown_share"] == 0
    assert summary["other_processes"] == 1


def test_a_figure_that_the_gpu_does_not_offer_is_left_out_with_one_warning(fake_gpu, monkeypatch):
    def unsupported(_):
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    monkeypatch.setattr(pynvml, "nvmlDeviceGetPowerUsage", unsupported)
    sampler = sample(fake_gpu)
    assert "power_w" not in sampler.summary()
    assert sampler.summary()["temperature_max_c"] == 70
    assert len([warning for warning in sampler.warnings if "NVML" in warning]) == 1
    assert "power" in sampler.warnings[0]


def test_without_the_library_the_run_goes_on_with_a_warning(monkeypatch):
    def missing():
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", missing)
    with NvmlSampler(GPU) as sampler:
        pass
    assert sampler.summary() is None
    assert len([warning for warning in sampler.warnings if "NVML" in warning]) == 1


def test_a_cpu_has_nothing_to_sample(monkeypatch):
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: pytest.fail("NVML asked on a CPU"))
    with NvmlSampler(torch.device("cpu")) as sampler:
        pass
    assert sampler.summary() is None
    assert sampler.warnings == []


def test_without_a_period_nothing_is_sampled(monkeypatch):
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: pytest.fail("NVML asked without a period"))
    with NvmlSampler(GPU, period_s=None) as sampler:
        pass
    assert sampler.summary() is None
