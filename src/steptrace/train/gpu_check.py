"""`python -m steptrace.train.gpu_check`: whether PyTorch can use the GPU, and whether a profiler sees its kernels."""

import json
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile


def check() -> dict[str, Any]:
    """Run one profiled product on the first GPU.

    Returns:
        `name` of the GPU, `kernels` in the trace, and `error`; null if unknown.
    """
    result: dict[str, Any] = {"name": None, "kernels": None, "error": None}
    try:
        result["name"] = torch.cuda.get_device_name(0)
        ones = torch.ones(64, 64, device="cuda")
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
            torch.mm(ones, ones)
            torch.cuda.synchronize()
        events = profiler.events() or []
        result["kernels"] = sum(event.device_type.name == "CUDA" for event in events)
    except (RuntimeError, AssertionError) as error:  # a build without CUDA asserts
        result["error"] = str(error).splitlines()[0]
    return result


if __name__ == "__main__":
    print(json.dumps(check()))  # noqa: T201
