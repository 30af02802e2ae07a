"""Rules on what is computed: number formats, and operators far from the data sheet."""

from collections.abc import Iterator, Mapping
from typing import Final

from steptrace.documents.kernels import Precision
from steptrace.findings.model import Match, Rule, rule
from steptrace.findings.window import Window
from steptrace.format import duration, plural
from steptrace.format import share as percent
from steptrace.limits import MODERATE_SHARE, NOISE_FLOOR

#: Below this share of 16 bits or less the TensorFlow Profiler reports it.
LOW_PRECISION_SHARE: Final = 0.10
#: Compute capabilities (major numbers) of NVIDIA's first GPUs with tensor cores, and of the first with bf16 and TF32.
TENSOR_CORES_SINCE: Final = 7
AMPERE: Final = 8
#: Half the bytes, and twice the rate of TF32 on tensor cores: what 16 bits can save of work in 32.
_SAVED_BY_HALF: Final = 0.5


def _bf16_fits(window: Window) -> Iterator[Match]:
    precision = window.entry.precision
    if precision is None:
        return
    by_format = precision.kernel_ns
    narrow, wide = by_format.get("bits16", 0) + by_format.get("bits8", 0), by_format.get("bits32", 0)
    if narrow + wide == 0 or narrow / (narrow + wide) >= LOW_PRECISION_SHARE:
        return
    tf32_ns, matrix_ns, on_cores_ns = precision.tf32_ns, precision.tensor_core_eligible_ns, precision.tensor_core_ns
    # Beside the cores a product may gain all of its time, where there are cores.
    major = window.entry.compute_major
    has_cores = major is None or major >= TENSOR_CORES_SINCE
    off_cores_ns = min(matrix_ns - on_cores_ns - precision.tensor_core_unknown_ns, wide) if has_cores else 0
    cost_ns = _at_most_compute(window, off_cores_ns + _SAVED_BY_HALF * (wide - off_cores_ns))
    # What the arithmetic gains shows in matrix work; without any, only the bytes of the rest are halved.
    if not matrix_ns or window.share(cost_ns) < MODERATE_SHARE:
        return
    yield Match(
        severity="warning" if 2 * off_cores_ns > matrix_ns else "info",
        claim=f"kernels compute in 32 bits for {duration(window.per_step(wide))} {window.per}, and in 16 bits or less "
        f"for {percent(narrow / (narrow + wide))} of their time",
        evidence=(
            f"matrix products, convolutions and attention take {duration(window.per_step(matrix_ns))} {window.per}, "
            f"{percent(on_cores_ns / matrix_ns)} of it on tensor cores"
            + (f", in 32 bits with TF32 {duration(window.per_step(tf32_ns))}" if tf32_ns else ""),
            *_matrix_kernels(precision, window),
            "the upper bound assumes half the time in 16 bits, and none of that of products beside the tensor cores",
        ),
        cost_ns_per_step=cost_ns,
        advice=_of_gpu(major, "" if tf32_ns else _TF32),
    )


def _at_most_compute(window: Window, total_ns: float) -> float:
    """A sum of kernel times as time of a step."""
    return min(window.per_step(total_ns), window.parts.get("compute", window.per_step(total_ns)))


def _matrix_kernels(precision: Precision, window: Window) -> list[str]:
    """The most expensive matrix kernels in 32 bits."""
    rows = [row for row in precision.kernels if row.bits == "bits32"]
    return [f"{row.short_name}: {duration(window.per_step(row.ns))} {window.per}" for row in rows[:3]]


def _of_gpu(major: int | None, more: str) -> str | None:
    """The advice on 16 bits for a GPU of this compute capability; None if unknown."""
    if major is None:
        return None
    return _BF16_ADVICE + more if major >= AMPERE else _FP16_ADVICE.format(major=major)


_BF16_ADVICE: Final = "Train under bf16 autocast: weights and optimizer state stay in 32 bits."
_TF32: Final = (
    ' Where the formulas need 32 bits, allow TF32 for matrix products: `torch.set_float32_matmul_precision("high")`. '
    "Convolutions may use it unless that was switched off."
)
_FP16_ADVICE: Final = (
    "Train under fp16 autocast with a gradient scaler (`torch.amp.GradScaler`): weights and optimizer state stay in 32 "
    "bits. This GPU (compute capability {major}) has neither bf16 arithmetic nor TF32."
)

#: So many operators are named at most, those first that lose most.
_MOST: Final = 3
_CAUSES: Final[Mapping[str, tuple[str, str]]] = {
    "sizes no multiple of 8": (
        "rows of these 16-bit matrices are no multiple of 8 long, so tensor cores may not be used",
        "Pad the sizes that go into products to multiples of 8 (vocabulary, features, batch).",
    ),
    "strided inputs": (
        "inputs have gaps or are broadcast: more bytes are moved than are used",
        "Make the input contiguous once where it is made, or change the order of its dimensions.",
    ),
    "too little work per call": (
        "a call has less work than the start of a kernel takes",
        "Let one kernel do the work of many: a larger batch, a fused operator, or torch.compile.",
    ),
}


def _slow_kernels(window: Window) -> Iterator[Match]:
    all_ns = window.entry.gpu.compute_ns or 0
    slow = [row for row in window.entry.roofline if row.ns > row.slowest_ns and row.ns >= MODERATE_SHARE * all_ns]
    lost_ns = window.per_step(sum(row.ns - row.slowest_ns for row in slow))
    if not slow:
        return
    slow.sort(key=lambda row: row.slowest_ns - row.ns)
    worst = slow[0]
    causes = [_CAUSES[cause] for cause in dict.fromkeys(row.because for row in slow[:_MOST]) if cause in _CAUSES]
    yield Match(
        severity="info",
        claim=f"{worst.name} runs at {percent(worst.roofline_pct / 100)} of the speed in the GPU's data sheet, "
        f"and takes {duration(window.per_step(worst.ns))} {window.per}",
        evidence=(
            *(
                f"{row.name} of {row.inputs}: {plural(round(window.per_step(row.count), 2), 'call')} {window.per}, "
                f"{duration(window.per_step(row.ns))}; expected at most {duration(window.per_step(row.slowest_ns))}"
                for row in slow[:_MOST]
            ),
            *(why for why, _ in causes),
        ),
        cost_ns_per_step=lost_ns,
        advice=" ".join(advice for _, advice in causes) or None,
    )


COMPUTE_RULES: Final[tuple[Rule[Window], ...]] = (
    rule("fp32_where_bf16_fits", _bf16_fits, {"narrow": LOW_PRECISION_SHARE, "least": MODERATE_SHARE}),
    rule("slow_kernels", _slow_kernels, {"least": MODERATE_SHARE, "noise": NOISE_FLOOR}),
)
