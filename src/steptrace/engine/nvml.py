"""Samples the GPU's management library (NVML) in a thread while the unprofiled steps run.

NVML's utilisation is the share of its sampling period in which any kernel ran, however small. It is recorded to be
compared with the trace, since most people look at this figure. Its power, times the step time, is the energy of a step.
If NVML fails, the run goes on with a warning.
"""

import contextlib
import threading
from collections.abc import Callable
from statistics import fmean
from typing import Any, Final

import pynvml
import torch

from steptrace.engine.rank_record import NvmlMeans

_PERIOD_S: Final = 0.1
#: How long the end of a run waits for the library's last answer.
_ANSWERS_WITHIN_S: Final = 10
#: The reasons for which a GPU lowers its clocks although it has work.
_THROTTLED: Final = (
    pynvml.nvmlClocksEventReasonSwPowerCap
    | pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown
    | pynvml.nvmlClocksEventReasonSwThermalSlowdown
    | pynvml.nvmlClocksEventReasonHwThermalSlowdown
    | pynvml.nvmlClocksEventReasonHwSlowdown
)
#: There is a warning if at least this share of the samples has lowered clocks.
_OFTEN: Final = 0.1


_MILLIWATTS_PER_WATT: Final = 1000


class NvmlSampler:
    """Samples one GPU while its context is open; then `summary()` returns the figures, and `notes` has the problems."""

    def __init__(self, device: torch.device) -> None:
        self.notes: list[dict[str, Any]] = []
        self._device = device
        self._samples: dict[str, list[float]] = {}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> "NvmlSampler":
        try:
            pynvml.nvmlInit()
            # By its UUID, since CUDA_VISIBLE_DEVICES renumbers CUDA's devices only.
            uuid = torch.cuda.get_device_properties(self._device).uuid
            handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        except pynvml.NVMLError as error:
            self._note("nvml_unavailable", error=str(error))
        else:
            self._thread = threading.Thread(target=self._sample, args=(handle,), name="nvml", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread is None:
            return
        self._stop.set()
        self._thread.join(_ANSWERS_WITHIN_S)
        if self._thread.is_alive():  # the library can hang where a GPU was lost; the run must not
            self._note("nvml_unavailable", error=f"no answer within {_ANSWERS_WITHIN_S} s")
        else:
            # The figures are there: an error of the end changes none.
            with contextlib.suppress(pynvml.NVMLError):
                pynvml.nvmlShutdown()
        if further := int(max(self._samples.get("processes", [1])) - 1):
            self._note("other_processes", processes=further)
        if (throttled := fmean(self._samples.get("throttled", [0]))) >= _OFTEN:
            self._note("clocks_lowered", share=throttled)

    def summary(self) -> NvmlMeans | None:
        """The means over all samples; None if the GPU offers neither utilisation nor power."""
        utilisation, power = (self._mean(name) for name in ("utilisation", "power"))
        if utilisation is None and power is None:
            return None
        return NvmlMeans(utilisation_pct=utilisation, power_w=power)

    def _mean(self, name: str) -> float | None:
        samples = self._samples.get(name)
        return fmean(samples) if samples else None

    def _note(self, code: str, **figures: Any) -> None:
        self.notes.append({"code": code, "figures": figures})

    def _sample(self, handle: Any) -> None:
        queries = dict(_QUERIES)
        while queries:
            for name, query in tuple(queries.items()):
                try:
                    value = query(handle)
                    self._samples.setdefault(name, []).append(value)
                except pynvml.NVMLError as error:
                    del queries[name]
                    self._samples.pop(name, None)
                    self._note("nvml_figure_missing", figure=name, error=str(error))
            if self._stop.wait(_PERIOD_S):
                return


_QUERIES: Final[dict[str, Callable[[Any], float]]] = {
    "utilisation": lambda handle: float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu),
    "throttled": lambda handle: float(bool(pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle) & _THROTTLED)),
    "power": lambda handle: pynvml.nvmlDeviceGetPowerUsage(handle) / _MILLIWATTS_PER_WATT,
    # Counted, not compared by id: in a container NVML's process ids are the host's.
    "processes": lambda handle: len(pynvml.nvmlDeviceGetComputeRunningProcesses(handle)),
}
