"""Rules on number formats and tensor cores.

Kernel times are summed over streams, so a cost is at most the step's compute time. What runs in a format that no name
tells is left out of every share.
"""

from collections.abc import Iterator
from typing import Final

from steptrace.analysis.input.measure import MODERATE_SHARE
from steptrace.documents.summary import Precision
from steptrace.findings.model import Match, Rule
from steptrace.findings.trace.window import Window
from steptrace.format import duration
from steptrace.format import whole_percent as percent

#: Below this share of 16 bits or less the TensorFlow Profiler reports it.
LOW_PRECISION_SHARE: Final = 0.10
#: Below this share of the matrix work on tensor cores they count as badly used.
TENSOR_CORE_SHARE: Final = 0.50
#: Compute capabilities (major numbers) of NVIDIA's first GPUs with tensor cores, and of the first with bf16 and TF32.
TENSOR_CORES_SINCE: Final = 7
AMPERE: Final = 8
#: Half the bytes, and twice the rate of TF32 on tensor cores: what 16 bits can save of work in 32.
_SAVED_BY_HALF: Final = 0.5


def _tensor_cores(window: Window) -> Iterator[Match]:
    found, major = window.entry.precision, window.entry.compute_major
    if found is None or (major is not None and major < TENSOR_CORES_SINCE):
        return
    without, using = found.tensor_core_no_ns, found.tensor_core_ns
    if without + using == 0:
        return
    share, cost_ns = using / (without + using), _at_most_compute(window, without)
    if share >= TENSOR_CORE_SHARE or window.share(cost_ns) < MODERATE_SHARE:
        return
    wide = found.eligible_16_ns < (without + using) / 2
    yield Match(
        severity="warning",
        claim=f"{percent(1 - share)} of the time of matrix products, convolutions and attention is not spent on tensor "
        "cores" + (", but in 32 bits" if wide else ""),
        evidence=(
            f"{duration(window.each(using))} {window.per} on tensor cores, {duration(window.each(without))} not",
            *_without_tensor_cores(found, window),
        ),
        cost_ns_per_step=cost_ns,
        advice=_wide_advice(major) if wide else _NARROW_ADVICE,
    )


def _bf16_fits(window: Window) -> Iterator[Match]:
    found = window.entry.precision
    if found is None:
        return
    by_format = found.kernel_ns
    narrow, wide = by_format.get("bits16", 0) + by_format.get("bits8", 0), by_format.get("bits32", 0)
    if narrow + wide == 0 or narrow / (narrow + wide) >= LOW_PRECISION_SHARE:
        return
    cost_ns = _SAVED_BY_HALF * _at_most_compute(window, wide)
    # What the arithmetic gains shows in matrix work; without any, only the bytes of the rest are halved.
    if not found.tensor_core_eligible_ns or window.share(cost_ns) < MODERATE_SHARE:
        return
    tf32_ns, matrix_ns = found.tf32_ns, found.tensor_core_eligible_ns
    yield Match(
        severity="info",
        claim=f"{_only(narrow / (narrow + wide))} kernel time is in 16 bits or less, {duration(window.each(wide))} "
        f"{window.per} in 32",
        evidence=(
            f"matrix products, convolutions and attention take {duration(window.each(matrix_ns))} {window.per}"
            + (f", in 32 bits with TF32 {duration(window.each(tf32_ns))}" if tf32_ns else ""),
            "the ceiling takes it that half the bytes, at twice the rate, save half",
        ),
        cost_ns_per_step=cost_ns,
        advice=_format_advice(window.entry.compute_major),
    )


def _only(share: float) -> str:
    return f"only {percent(share)} of" if share >= 0.005 else "no"


def _at_most_compute(window: Window, total_ns: float) -> float:
    """A sum of kernel times as time of a step."""
    return min(window.each(total_ns), window.parts.get("compute", window.each(total_ns)))


def _without_tensor_cores(found: Precision, window: Window) -> list[str]:
    """The most expensive kernels that could use tensor cores and do not."""
    rows = [row for row in found.kernels if row.tensor_core == "no"]
    return [f"{row.short_name}: {duration(window.each(row.ns))} {window.per}" for row in rows[:3]]


def _format_advice(major: int | None) -> str | None:
    """Which 16-bit format a GPU can do; None, for the rule's own advice, where it is not known."""
    if major is None:
        return None
    return _BF16_ADVICE if major >= AMPERE else _FP16_ADVICE.format(major=major)


def _wide_advice(major: int | None) -> str | None:
    return f"{_BF16_ADVICE} {_TF32_ADVICE}" if major is not None and major >= AMPERE else _format_advice(major)


_BF16_ADVICE: Final = "Train under bf16 autocast: weights and optimizer state stay in 32 bits."
_FP16_ADVICE: Final = (
    "Train under fp16 autocast with a gradient scaler (`torch.amp.GradScaler`): weights and optimizer state stay in 32 "
    "bits. This GPU (compute capability {major}) has neither bf16 arithmetic nor TF32."
)
_TF32_ADVICE: Final = (
    'Where the formulas need 32 bits, allow TF32: `torch.set_float32_matmul_precision("high")` and '
    '`torch.backends.cudnn.conv.fp32_precision = "tf32"`.'
)
_OLDER_ADVICE: Final = (
    "NVIDIA's GPUs before Ampere (compute capability below 8) have neither bf16 nor TF32: there fp16 autocast with a "
    "gradient scaler (`torch.amp.GradScaler`)."
)
_NARROW_ADVICE: Final = (
    "Make the sizes that go into products multiples of 8 (channels, features, vocabulary, batch), and for "
    "convolutions use channels_last."
)

ARITHMETIC_RULES: Final[tuple[Rule[Window], ...]] = (
    Rule(
        name="tensor_cores_unused",
        condition=f"of matrix products, convolutions and attention less than {percent(TENSOR_CORE_SHARE)} of the time "
        f"runs on tensor cores, and what does not takes at least {percent(MODERATE_SHARE)} of the step",
        basis="PyTorch's TensorBoard plugin reports it where none does; the TensorFlow Profiler calls less than 50 % "
        "of the matrix unit low; 5 % of the step is ours",
        advice=f"{_BF16_ADVICE} {_TF32_ADVICE} {_OLDER_ADVICE}",
        counter_check="A GPU without tensor cores for the type has nothing to gain, nor has work bound by memory: look "
        "whether these kernels get shorter. The loss curve must stay the same.",
        find=_tensor_cores,
        study="precision",
    ),
    Rule(
        name="fp32_where_bf16_fits",
        condition=f"less than {percent(LOW_PRECISION_SHARE)} of kernel time is in 16 bits or less, there is matrix "
        f"work, and half of the 32-bit time is at least {percent(MODERATE_SHARE)} of the step",
        basis="the TensorFlow Profiler reports it below 10 % of 16 bits; the 5 % is ours",
        advice=f"{_BF16_ADVICE} {_OLDER_ADVICE}",
        counter_check="The loss curve must stay the same; casts are kernels of their own, so a step of many small "
        "operators may gain nothing.",
        find=_bf16_fits,
        study="precision",
        explained_by=("tensor_cores_unused",),
    ),
)
