"""What NVML says of the virtual GPUs to a program that asks it by `pynvml`, where the machine has no driver.

Training scripts ask for the memory that is used, and for names and loads, to print them. The GPUs are idle. A figure
that a prediction does not know is refused with the error by which NVML refuses a figure that a GPU does not report.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final, NoReturn

from steptrace.predict.backend import Replacements, device_count, machine
from steptrace.predict.cuda_memory import memory_info

#: The oldest driver with which the builds for a version of CUDA run as they are.
_DRIVERS: Final = {"12.6": "560.28.03", "13.0": "580.65.06"}
_UUID: Final = "GPU-00000000-0000-0000-0000-"
_KHZ_PER_MHZ: Final = 1000
#: Functions about GPUs, and about the machine that they are in.
_OF_GPUS: Final = ("nvmlDevice", "nvmlSystem")


def replacements() -> Replacements:
    """The replacements in `pynvml`; none without it, and none on a machine whose NVML answers."""
    try:
        import pynvml
    except ImportError:
        return {}
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        asked = [name for name in vars(pynvml) if name in _ANSWERS or name.startswith(_OF_GPUS)]
        return {(pynvml, name): _ANSWERS.get(name) or _refusing(pynvml) for name in asked}
    pynvml.nvmlShutdown()
    return {}


def _refusing(pynvml: Any) -> Callable[..., NoReturn]:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    return refuse


def _handle(index: int) -> int:
    """The handle of a GPU, which is its number here."""
    if not 0 <= index < device_count():
        import pynvml

        raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    return index


def _memory(gpu: int, _version: object = None) -> SimpleNamespace:
    free, total = memory_info(gpu)
    return SimpleNamespace(total=total, free=free, used=total - free, reserved=0)


def _cuda_version() -> int:
    major, minor = machine.driver.cuda.split(".")
    return 1000 * int(major) + 10 * int(minor)


def _nothing(*_: object, **__: object) -> None:
    pass


_ANSWERS: Final[dict[str, Callable[..., Any]]] = {
    **dict.fromkeys(("nvmlInit", "nvmlInitWithFlags", "nvmlInit_v2", "nvmlShutdown"), _nothing),
    **dict.fromkeys(("nvmlDeviceGetCount", "nvmlDeviceGetCount_v2"), device_count),
    **dict.fromkeys(("nvmlDeviceGetHandleByIndex", "nvmlDeviceGetHandleByIndex_v2"), _handle),
    "nvmlDeviceGetHandleByUUID": lambda uuid: _handle(int(_text(uuid).removeprefix(_UUID))),
    "nvmlDeviceGetIndex": lambda gpu: gpu,
    "nvmlDeviceGetMinorNumber": lambda gpu: gpu,
    "nvmlDeviceGetName": lambda _gpu: machine.driver.name,
    "nvmlDeviceGetUUID": lambda gpu: f"{_UUID}{gpu:012d}",
    "nvmlDeviceGetMemoryInfo": _memory,
    "nvmlDeviceGetUtilizationRates": lambda _gpu: SimpleNamespace(gpu=0, memory=0),
    "nvmlDeviceGetCudaComputeCapability": lambda _gpu: machine.driver.capability,
    **dict.fromkeys(
        ("nvmlDeviceGetTemperature", "nvmlDeviceGetPowerUsage", "nvmlDeviceGetTotalEnergyConsumption"),
        lambda *_: 0,
    ),
    **dict.fromkeys(
        ("nvmlDeviceGetClockInfo", "nvmlDeviceGetMaxClockInfo"), lambda *_: machine.driver.clock_khz // _KHZ_PER_MHZ
    ),
    **dict.fromkeys(
        (f"nvmlDeviceGet{kind}RunningProcesses{end}" for kind in ("Compute", "Graphics") for end in ("", "_v2", "_v3")),
        lambda _gpu: [],
    ),
    "nvmlSystemGetDriverVersion": lambda: _DRIVERS[machine.driver.cuda],
    **dict.fromkeys(("nvmlSystemGetCudaDriverVersion", "nvmlSystemGetCudaDriverVersion_v2"), _cuda_version),
}


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
