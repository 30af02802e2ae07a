"""Advice on a trace that holds neither a backward pass nor an optimizer: what the rules say of training, without it."""

from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from steptrace.documents.finding import Finding
from steptrace.documents.summary import TraceSummary

_HALF: Final = "Run it in 16 bits: the model in bfloat16 (float16 on NVIDIA's GPUs before Ampere), or under autocast."
_SAME: Final = "The outputs must stay good enough for what they are used for."

#: By rule its advice and its counter-check; None leaves the finding's own.
_ADVICE: Final[Mapping[str, tuple[str | None, str | None]]] = {
    "input_bound": (
        None,
        "Run some steps on a few batches kept in memory: such a step is what a perfect loader would give.",
    ),
    "exposed_communication": (
        "Send less (16 bits), or more at once (a larger batch); on several nodes look at the network first.",
        "Run on one rank: its step is what communication for free would give. Look whether a rank waits for another.",
    ),
    "unused_memory": (
        "Try a larger batch, if several inputs may be computed at once: kernels get longer, calls fewer.",
        "Samples per second must grow; each input may have to wait longer for its result.",
    ),
    "low_headroom": ("Run under `torch.inference_mode()`, in 16 bits, or with a smaller batch.", None),
    "fp32_where_bf16_fits": (_HALF, _SAME),
    "tensor_cores_unused": (
        f"{_HALF} Sizes that go into products should be multiples of 8.",
        f"A GPU without tensor cores for the type has nothing to gain, nor has work bound by memory. {_SAME}",
    ),
    "copy_bound": (
        "Copy the next batch on a stream of its own while this one is computed, and leave values on the device.",
        "Run on one batch kept on the device: its step is what perfect copies would give.",
    ),
    "launch_bound": (
        "Launch less: a CUDA graph launches many kernels by one call, torch.compile fuses them.",
        None,
    ),
}


def without_training(finding: Finding, entry: TraceSummary) -> Finding:
    """The finding with advice for a forward pass alone, where the trace is known to hold nothing else."""
    advice = _ADVICE.get(finding.rule)
    if entry.training is not False or advice is None:
        return finding
    return replace(finding, advice=advice[0] or finding.advice, counter_check=advice[1] or finding.counter_check)
