import threading
from types import SimpleNamespace

import pynvml
import pytest
import torch

from steptrace.engine import nvml
from steptrace.engine.nvml import NvmlSampler
from steptrace.engine.rank_record import NvmlMeans

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
        "nvmlDeviceGetPowerUsage": lambda _: 300_000 + 100_000 * (state.sample == 0),  # milliwatts
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
    assert sampler.summary() == NvmlMeans(utilisation_pct=80, power_w=pytest.approx((400 + 300 + 300) / 3))
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


def test_a_gpu_that_does_not_tell_its_power_has_none_and_not_0(fake_gpu, monkeypatch):
    def unsupported(_):
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    monkeypatch.setattr(pynvml, "nvmlDeviceGetPowerUsage", unsupported)
    assert sample(fake_gpu).summary() == NvmlMeans(utilisation_pct=80)


def test_without_the_library_the_run_goes_on_with_a_note(monkeypatch):
    def missing():
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", missing)
    with NvmlSampler(GPU) as sampler:
        pass
    assert sampler.summary() is None
    assert [item["code"] for item in sampler.notes] == ["nvml_unavailable"]


def _fails(_):
    raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)


def test_a_figure_that_fails_midway_is_none_and_the_others_stay(fake_gpu, monkeypatch):
    readings = iter([300_000, 310_000])

    def power(handle):
        value = next(readings, None)
        return _fails(handle) if value is None else value

    monkeypatch.setattr(pynvml, "nvmlDeviceGetPowerUsage", power)
    sampler = sample(fake_gpu)
    assert sampler.summary() == NvmlMeans(utilisation_pct=80)
    assert [n["figures"]["figure"] for n in sampler.notes if n["code"] == "nvml_figure_missing"] == ["power"]


def test_a_gpu_that_is_lost_midway_leaves_notes_and_the_run_goes_on(fake_gpu, monkeypatch):
    lost = threading.Event()
    utilisation = pynvml.nvmlDeviceGetUtilizationRates
    monkeypatch.setattr(
        pynvml, "nvmlDeviceGetUtilizationRates", lambda h: _fails(h) if fake_gpu.done.is_set() else utilisation(h)
    )
    for name in ("nvmlDeviceGetPowerUsage", "nvmlDeviceGetCurrentClocksEventReasons"):
        monkeypatch.setattr(pynvml, name, _fails)

    def last(handle):
        if fake_gpu.done.is_set():
            lost.set()
        return _fails(handle) if lost.is_set() else [1]

    monkeypatch.setattr(pynvml, "nvmlDeviceGetComputeRunningProcesses", last)
    monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: _fails(None))
    with NvmlSampler(GPU) as sampler:
        assert lost.wait(1500)
    assert sampler.summary() is None
    assert {n["code"] for n in sampler.notes} == {"nvml_figure_missing"}
    assert len(sampler.notes) == 4


@pytest.mark.usefixtures("fake_gpu")
def test_a_library_that_hangs_does_not_hold_the_run(monkeypatch):
    asked = threading.Event()
    end = threading.Event()

    def hangs(_):
        asked.set()
        end.wait(1500)
        return 1_000

    monkeypatch.setattr(pynvml, "nvmlDeviceGetPowerUsage", hangs)
    monkeypatch.setattr(nvml, "_ANSWERS_WITHIN_S", 0.01)
    with NvmlSampler(GPU) as sampler:
        assert asked.wait(1500)
    assert [n["code"] for n in sampler.notes] == ["nvml_unavailable"]
    end.set()
    sampler._thread.join(1500)
