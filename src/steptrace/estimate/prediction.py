"""The estimate of what a prediction.json says was followed."""

from collections.abc import Mapping
from typing import Any

from steptrace.documents.estimate import COMPILED, Estimate, OperatorCalls, TensorSpec
from steptrace.estimate.gpus import Gpu
from steptrace.estimate.step import FollowedStep, estimate_step


def estimate_prediction(prediction: Mapping[str, Any], gpu: Gpu, *, peaks: Mapping[int, int] | None = None) -> Estimate:
    """Estimate a prediction's step; `peaks`: see `estimate_step`."""
    followed = FollowedStep(
        operators=[_calls(call) for call in prediction["operator_calls"]],
        steps=len(prediction.get("by_step") or ()) or 1,
        syncs=prediction["total"],
        batch=prediction.get("batch_size"),
        peak_memory_bytes=prediction["peak_memory_bytes"],
        tf32=prediction["tf32"],
        tf32_convolutions=prediction["tf32_convolutions"],
        compiled=[(one["file"], one["line"]) for one in prediction["unknown"] if one["op"] == COMPILED],
    )
    return estimate_step(followed, gpu, peaks=peaks)


def _calls(call: Mapping[str, Any]) -> OperatorCalls:
    of_gpu = {name: tuple(map(_tensor, call[name])) for name in ("inputs", "outputs")}
    host = call.get("host")
    return OperatorCalls(**{**call, **of_gpu, "host": host and _tensor(host)})


def _tensor(spec: Mapping[str, Any]) -> TensorSpec:
    return TensorSpec(shape=tuple(spec["shape"]), strides=tuple(spec["strides"]), dtype=spec["dtype"])
