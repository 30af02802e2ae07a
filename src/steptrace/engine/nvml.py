"""Samples the GPU's management library (NVML) in a thread while the unprofiled steps run.

NVML's utilisation is the share of its own sampling period during which any kernel ran, however small. It is recorded
for comparison with the trace, since it is the figure most people look at. If NVML fails, the run goes on with a
warning.
"""

import threading
from collections.abc import Callable
from statistics import fmean
from typing import Any

import pynvml
import torch

#: Event reason bits that mean the clocks are held down, by the name of their share in the summary.
_THROTTLE_REASONS = {
    "power_throttled_share": pynvml.nvmlClocksEventReasonSwPowerCap | pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown,
    "thermal_throttled_share": (
        pynvml.nvmlClocksEventReasonSwThermalSlowdown | pynvml.nvmlClocksEventReasonHwThermalSlowdown
    ),
    "hardware_slowdown_share": pynvml.nvmlClocksEventReasonHwSlowdown,
}

#: Figure of the summary -> the sampled value, and the function that aggregates the samples.
_FIGURES: dict[str, tuple[str, Callable[[list[float]], float]]] = {
    "utilisation_pct": ("utilisation_pct", fmean),
    "memory_utilisation_pct": ("memory_utilisation_pct", fmean),
    "sm_clock_mhz": ("sm_clock_mhz", fmean),
    "sm_clock_min_mhz": ("sm_clock_mhz", min),
    "memory_clock_mhz": ("memory_clock_mhz", fmean),
    "temperature_max_c": ("temperature_c", max),
    "power_w": ("power_w", fmean),
    **{name: (name, fmean) for name in _THROTTLE_REASONS},
    "other_processes": ("other_processes", max),
}


class NvmlSampler:
    """Samples one GPU every `period_s` seconds while the context is open; does nothing on a CPU, or if that is None.

    Afterwards `summary()` gives the figures and `warnings` says what failed.
    """

    def __init__(self, device: torch.device, period_s: float | None = 0.1) -> None:
        self.warnings: list[str] = []
        self._device = device
        self._period_s = period_s
        self._samples: list[dict[str, float]] = []
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> "NvmlSampler":
        if self._device.type == "cuda" and self._period_s is not None:
            try:
                pynvml.nvmlInit()
                handle = _handle(self._device)
            except pynvml.NVMLError as error:
                self.warnings.append(f"NVML not available: {error}")
            else:
                self._thread = threading.Thread(target=self._sample, args=(handle,), name="nvml", daemon=True)
                self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread is not None:
            self._stop.set()
            self._thread.join()
            pynvml.nvmlShutdown()
            if others := int(max((sample.get("other_processes", 0) for sample in self._samples), default=0)):
                who = "another process" if others == 1 else f"{others} other processes"
                self.warnings.append(f"{who} used the GPU meanwhile: step times may be longer for it")

    def summary(self) -> dict[str, float] | None:
        """The figures over all samples; None if there is none, and without those that the GPU does not offer.

        `utilisation_pct`, `memory_utilisation_pct`, `sm_clock_mhz`, `memory_clock_mhz` and `power_w` are means; beside
        them stand `sm_clock_min_mhz` and `temperature_max_c`. `*_throttled_share` and `hardware_slowdown_share` are
        shares of the samples in which the clocks were held down for that reason. `other_processes` is the most
        processes seen on the GPU besides this one.
        """
        if not self._samples:
            return None
        summary = {"samples": float(len(self._samples))}
        for name, (measured, reduce) in _FIGURES.items():
            values = [sample[measured] for sample in self._samples if measured in sample]
            if values:
                summary[name] = reduce(values)
        return summary

    def _sample(self, handle: Any) -> None:
        failed: set[str] = set()
        while True:
            sample: dict[str, float] = {}
            for query in _QUERIES:
                if query.__name__ in failed:
                    continue
                try:
                    sample |= query(handle)
                except pynvml.NVMLError as error:
                    failed.add(query.__name__)
                    self.warnings.append(f"NVML gives no {query.__name__.strip('_')}: {error}")
            if sample:
                self._samples.append(sample)
            if self._stop.wait(self._period_s):
                return


def _handle(device: torch.device) -> Any:
    """NVML's handle of a CUDA device: by its UUID, since CUDA_VISIBLE_DEVICES renumbers CUDA's devices only."""
    uuid = torch.cuda.get_device_properties(device).uuid
    return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")


def _utilisation(handle: Any) -> dict[str, float]:
    rates = pynvml.nvmlDeviceGetUtilizationRates(handle)
    return {"utilisation_pct": float(rates.gpu), "memory_utilisation_pct": float(rates.memory)}


def _clocks(handle: Any) -> dict[str, float]:
    return {
        "sm_clock_mhz": float(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)),
        "memory_clock_mhz": float(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM)),
    }


def _temperature(handle: Any) -> dict[str, float]:
    return {"temperature_c": float(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU))}


def _power(handle: Any) -> dict[str, float]:
    return {"power_w": pynvml.nvmlDeviceGetPowerUsage(handle) / 1000}


def _throttling(handle: Any) -> dict[str, float]:
    reasons = pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
    return {name: float(bool(reasons & bits)) for name, bits in _THROTTLE_REASONS.items()}


def _processes(handle: Any) -> dict[str, float]:
    # Counted, not compared by id: in a container NVML's process ids are the host's.
    return {"other_processes": float(max(len(pynvml.nvmlDeviceGetComputeRunningProcesses(handle)) - 1, 0))}


_QUERIES = (_utilisation, _clocks, _temperature, _power, _throttling, _processes)
