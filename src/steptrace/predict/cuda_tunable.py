"""The settings of `torch.cuda.tunable` during a prediction."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch


class Tunable:
    """`torch.cuda.tunable`, which tries a product's kernels and keeps the fastest: its settings, and no result."""

    def __init__(self) -> None:
        self._settings: dict[str, Any] = {
            "is_enabled": False,
            "tuning_is_enabled": True,
            "record_untuned_is_enabled": False,
            "get_max_tuning_duration": 30,
            "get_max_tuning_iterations": 100,
            "get_filename": "",
            "get_rotating_buffer_size": 52428800,
        }

    def stand_ins(self) -> dict[str, Callable[..., Any]]:
        """The stand-ins for the module's functions, by name."""
        readers = {name: partial(self._read, name) for name in self._settings}
        writers = {
            name.replace("is_enabled", "enable").replace("get_", "set_"): partial(self._write, name)
            for name in self._settings
        }
        no_effect = (
            "mgpu_tune_gemm_in_file", "set_numerical_check_tolerances", "tune_gemm_in_file", "write_file_on_exit",
        )  # fmt: skip
        return {
            **readers,
            **writers,
            "get_results": tuple,
            "get_validators": lambda: (("PT_VERSION", torch.__version__.partition("+")[0]),),
            "read_file": lambda _filename=None: False,
            "write_file": lambda _filename=None: True,
            **dict.fromkeys(no_effect, lambda *_, **__: None),
        }

    def _read(self, name: str) -> Any:
        return self._settings[name]

    def _write(self, name: str, value: Any = True, *_: Any) -> None:  # noqa: FBT002 - torch's own
        self._settings[name] = value
