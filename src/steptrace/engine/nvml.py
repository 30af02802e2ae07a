"""Samples the GPU's management library (NVML) in a thread while the unprofiled steps run.

NVML's utilisation is the share of its own sampling period during which any kernel ran, however small. It is recorded
for comparison with the trace, since it is the figure most people look at. If NVML fails, the run goes on with a
warning.
"""

import threading
from collections.abc import Callable
from statistics import fmean
from typing import Any, Final

import pynvml
import torch

_PERIOD_S: Final = 0.1
#: Why a GPU lowers its clocks although it has work.
_THROTTLED: Final = (
    pynvml.nvmlClocksEventReasonSwPowerCap
    | pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown
    | pynvml.nvmlClocksEventReasonSwThermalSlowdown
    | pynvml.nvmlClocksEventReasonHwThermalSlowdown
    | pynvml.nvmlClocksEventReasonHwSlowdown
)
#: Share of the samples with lowered clocks from which there is a warning.
_OFTEN: Final = 0.1


class NvmlSampler:
    """Samples one GPU while the context is open; afterwards `summary()` gives the figures, `notes` the problems."""

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
        self._thread.join()
        pynvml.nvmlShutdown()
        if others := int(max(self._samples.get("processes", [1])) - 1):
            self._note("other_processes", processes=others)
        if (throttled := fmean(self._samples.get("throttled", [0]))) >= _OFTEN:
            self._note("clocks_lowered", share=throttled)

    def summary(self) -> dict[str, float] | None:
        """The mean of `utilisation_pct` over all samples; None without samples."""
        utilisation = self._samples.get("utilisation")
        return {"utilisation_pct": fmean(utilisation)} if utilisation else None

    def _note(self, code: str, **figures: Any) -> None:
        self.notes.append({"code": code, "figures": figures})

    def _sample(self, handle: Any) -> None:
        queries = dict(_QUERIES)
        while queries:
            for name, query in tuple(queries.items()):
                try:
                    self._samples.setdefault(name, []).append(query(handle))
                except pynvml.NVMLError as error:
                    del queries[name], self._samples[name]
                    self._note("nvml_figure_missing", figure=name, error=str(error))
            if self._stop.wait(_PERIOD_S):
                return


_QUERIES: Final[dict[str, Callable[[Any], float]]] = {
    "utilisation": lambda handle: float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu),
    "throttled": lambda handle: float(bool(pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle) & _THROTTLED)),
    # Counted, not compared by id: in a container NVML's process ids are the host's.
    "processes": lambda handle: len(pynvml.nvmlDeviceGetComputeRunningProcesses(handle)),
}
