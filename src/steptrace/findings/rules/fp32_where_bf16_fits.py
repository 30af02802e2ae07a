"""Matrix work is computed in 32 bits where 16 would do."""

from collections.abc import Iterator
from typing import Annotated, Final, Literal

from steptrace.documents.base import Document, field
from steptrace.findings.rule import Match, Rule, Threshold, TraceFigures, Words, advise
from steptrace.findings.window import Window
from steptrace.format import duration, share
from steptrace.limits import MODERATE_SHARE

_NARROW: Final = Threshold(0.10, "the TensorFlow Profiler reports a smaller share of 16 bits")
_LEAST: Final = Threshold(MODERATE_SHARE, "ours")
#: Compute capabilities (major numbers) of NVIDIA's first GPUs with tensor cores, and of the first with bf16 and TF32.
TENSOR_CORES_SINCE: Final = 7
AMPERE: Final = 8
#: Half the bytes, and twice the rate of TF32 on tensor cores: what 16 bits can save of work in 32.
_SAVED_BY_HALF: Final = 0.5
#: The most kernels that are named.
_MOST_NAMED: Final = 3

#: What the advice names: any 16-bit format where the GPU is not known, bf16 with or without TF32 beside it, or fp16.
Remedy = Literal["any", "bf16", "bf16_or_tf32", "fp16"]


class WideKernel(Document, frozen=True, kw_only=True):
    """A kernel that computes in 32 bits, in a mean step."""

    name: Annotated[str, field("Short name.")]
    ns: Annotated[float, field("Its time.")]


class Figures(TraceFigures, frozen=True, kw_only=True):
    """Kernel time by number format."""

    wide_ns: Annotated[float, field("Kernel time in 32 bits.")]
    narrow_share: Annotated[float, field("Part of the kernel time of a known format that is in 16 bits or less.")]
    matrix_ns: Annotated[float, field("Time of matrix products, convolutions and attention.")]
    on_tensor_cores_share: Annotated[float, field("Part of it on tensor cores.")]
    tf32_ns: Annotated[float, field("Time in 32 bits with TF32.")]
    kernels: Annotated[tuple[WideKernel, ...], field("The kernels that take most time in 32 bits.")]
    compute_major: Annotated[int | None, field("Major number of the GPU's compute capability, if it is NVIDIA's.")]
    remedy: Annotated[Remedy, field("What the advice is about.")]


def _find(window: Window) -> Iterator[Match[Figures]]:
    precision = window.entry.precision
    if precision is None:
        return
    by_format = precision.kernel_ns
    narrow = by_format.get("bits16", 0) + by_format.get("bits8", 0)
    wide = by_format.get("bits32", 0)
    if narrow + wide == 0 or narrow / (narrow + wide) >= _NARROW.value:
        return
    matrix_ns = precision.tensor_core_eligible_ns
    on_cores_ns = precision.tensor_core_ns
    # Beside the cores a product may gain all of its time, where there are cores.
    major = window.entry.compute_major
    has_cores = major is None or major >= TENSOR_CORES_SINCE
    off_cores_ns = min(matrix_ns - on_cores_ns - precision.tensor_core_unknown_ns, wide) if has_cores else 0
    saved_ns = window.per_step(off_cores_ns + _SAVED_BY_HALF * (wide - off_cores_ns))
    cost_ns = min(saved_ns, window.parts.get("compute", saved_ns))
    # What the arithmetic gains shows in matrix work; without any, only the bytes of the rest are halved.
    if not matrix_ns or window.share(cost_ns) < _LEAST.value:
        return
    in_32_bits = [row for row in precision.kernels if row.bits == "bits32"]
    yield Match(
        severity="warning" if 2 * off_cores_ns > matrix_ns else "info",
        figures=Figures(
            steps=window.steps,
            step_ns=window.step_ns,
            wide_ns=window.per_step(wide),
            narrow_share=narrow / (narrow + wide),
            matrix_ns=window.per_step(matrix_ns),
            on_tensor_cores_share=on_cores_ns / matrix_ns,
            tf32_ns=window.per_step(precision.tf32_ns),
            kernels=tuple(
                WideKernel(name=row.short_name, ns=window.per_step(row.ns)) for row in in_32_bits[:_MOST_NAMED]
            ),
            compute_major=major,
            remedy=_remedy(major, uses_tf32=bool(precision.tf32_ns)),
        ),
        cost_ns_per_step=cost_ns,
    )


def _remedy(major: int | None, *, uses_tf32: bool) -> Remedy:
    """The number format to go to on a GPU of this compute capability."""
    if major is None:
        return "any"
    if major < AMPERE:
        return "fp16"
    return "bf16" if uses_tf32 else "bf16_or_tf32"


def _words(figures: Figures) -> Words:
    per = figures.per
    matrix = (
        f"matrix products, convolutions and attention take {duration(figures.matrix_ns)} {per}, "
        f"{share(figures.on_tensor_cores_share)} of it on tensor cores"
    )
    if figures.tf32_ns:
        matrix += f", in 32 bits with TF32 {duration(figures.tf32_ns)}"
    return Words(
        f"kernels compute in 32 bits for {duration(figures.wide_ns)} {per}, and in 16 bits or less for "
        f"{share(figures.narrow_share)} of their time",
        (
            matrix,
            *(f"{kernel.name}: {duration(kernel.ns)} {per}" for kernel in figures.kernels),
            "the upper bound assumes half the time in 16 bits, and no time for products that do not use tensor cores",
        ),
        advice=_advice(figures),
    )


def _advice(figures: Figures) -> tuple[str, ...]:
    match figures.remedy:
        case "bf16":
            return _BF16
        case "bf16_or_tf32":
            return (*_BF16, *_TF32)
        case "fp16":
            return advise(
                "Train under fp16 autocast with a gradient scaler (`torch.amp.GradScaler`): weights and optimizer "
                "state stay in 32 bits.",
                f"This GPU (compute capability {figures.compute_major}) has neither bf16 arithmetic nor TF32.",
            )
        case "any":
            return ()


_BF16: Final = advise(
    "Train under bf16 autocast: weights and optimizer state stay in 32 bits.",
)
_TF32: Final = advise(
    'Where the formulas need 32 bits, allow TF32 for matrix products: `torch.set_float32_matmul_precision("high")`.',
    "Convolutions may use it unless that was switched off.",
)

RULE: Final = Rule(
    name="fp32_where_bf16_fits",
    topic="compute",
    figures=Figures,
    words=_words,
    in_trace=_find,
    condition="less than {narrow} of kernel time is in 16 bits or less, there is matrix work, and half of the 32-bit "
    "time is at least {least} of the step, where matrix work that does not use the tensor cores counts in full; a "
    "warning if most of the matrix work does not use them",
    thresholds={"narrow": _NARROW, "least": _LEAST},
    advice=advise(
        "Train under bf16 autocast: weights and optimizer state stay in 32 bits.",
        "NVIDIA's GPUs before Ampere (compute capability below 8) have neither bf16 nor TF32: use fp16 autocast "
        "with a gradient scaler (`torch.amp.GradScaler`) on them.",
    ),
    counter_check="The loss curve must stay the same. A GPU without tensor cores for the type gains nothing there, and "
    "casts add kernels, so a step of many small operators may gain nothing.",
    study="precision",
    gpu_work=True,
)
