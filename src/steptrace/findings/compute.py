"""Rules on what is computed: number formats, operators far from the data sheet, memory left unused."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from steptrace.documents.roofline import OperatorRoofline, SlowCause
from steptrace.findings.rule import Match, Rule, Window, rule
from steptrace.format import duration, plural, size_bytes
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
    saved_ns = window.per_step(off_cores_ns + _SAVED_BY_HALF * (wide - off_cores_ns))
    cost_ns = min(saved_ns, window.parts.get("compute", saved_ns))
    # What the arithmetic gains shows in matrix work; without any, only the bytes of the rest are halved.
    if not matrix_ns or window.share(cost_ns) < MODERATE_SHARE:
        return
    in_32_bits = [row for row in precision.kernels if row.bits == "bits32"]
    yield Match(
        severity="warning" if 2 * off_cores_ns > matrix_ns else "info",
        claim=f"kernels compute in 32 bits for {duration(window.per_step(wide))} {window.per}, and in 16 bits or less "
        f"for {percent(narrow / (narrow + wide))} of their time",
        evidence=(
            f"matrix products, convolutions and attention take {duration(window.per_step(matrix_ns))} {window.per}, "
            f"{percent(on_cores_ns / matrix_ns)} of it on tensor cores"
            + (f", in 32 bits with TF32 {duration(window.per_step(tf32_ns))}" if tf32_ns else ""),
            *(f"{row.short_name}: {duration(window.per_step(row.ns))} {window.per}" for row in in_32_bits[:3]),
            "the upper bound assumes half the time in 16 bits, and none of that of products beside the tensor cores",
        ),
        cost_ns_per_step=cost_ns,
        advice=_of_gpu(major, "" if tf32_ns else _TF32),
    )


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

_MORE_BLOCKS: Final = (
    "Give its kernel more blocks to run in: another shape of the same inputs, or another operator. The cross-entropy "
    "of pixels, for example, runs in one block if its inputs are flattened to N x C, and in many as N x C x H x W: use "
    "its `ignore_index` to leave pixels out, instead of an index or a mask."
)

#: So many operators are named at most, those first that lose most.
_MOST: Final = 3
_CAUSES: Final[Mapping[SlowCause, tuple[str, str]]] = {
    "misaligned_sizes": (
        "rows of these 16-bit matrices are no multiple of 8 long, so tensor cores may not be used",
        "Pad the sizes that go into products to multiples of 8 (vocabulary, features, batch).",
    ),
    "strided_inputs": (
        "inputs have gaps or are broadcast: more bytes are moved than are used",
        "Make the input contiguous once where it is made, or change the order of its dimensions.",
    ),
    "few_blocks": (
        "its kernel runs in so few blocks that more than half of the GPU's multiprocessors stay idle",
        _MORE_BLOCKS,
    ),
    "small_calls": (
        "a call has less work than the start of a kernel takes",
        "Let one kernel do the work of many: a larger batch, a fused operator, or torch.compile.",
    ),
}


@dataclass(frozen=True)
class _SlowOperator:
    """The calls of an operator that take longer than the upper end of their estimate, over all sizes of inputs.

    `rows` have the one with the most time to save first.
    """

    name: str
    rows: tuple[OperatorRoofline, ...]

    @property
    def ns(self) -> int:
        """GPU time of these calls."""
        return sum(row.ns for row in self.rows)

    @property
    def expected_ns(self) -> int:
        """What they should take at most."""
        return sum(row.slowest_ns for row in self.rows)

    @property
    def lost_ns(self) -> int:
        """The time that an ordinary kernel would save."""
        return self.ns - self.expected_ns


def _slow_operators(rows: Iterable[OperatorRoofline]) -> list[_SlowOperator]:
    """The operators with calls slower than expected, the one with the most time to save first."""
    by_name: dict[str, list[OperatorRoofline]] = {}
    for row in sorted(rows, key=lambda row: row.slowest_ns - row.ns):
        if row.ns > row.slowest_ns:
            by_name.setdefault(row.name, []).append(row)
    slow = [_SlowOperator(name, tuple(of_name)) for name, of_name in by_name.items()]
    return sorted(slow, key=lambda one: -one.lost_ns)


def _slow_kernels(window: Window) -> Iterator[Match]:
    least_ns = NOISE_FLOOR * window.step_ns
    slow = [one for one in _slow_operators(window.entry.roofline) if window.per_step(one.lost_ns) >= least_ns]
    if not slow:
        return
    worst, per_step = slow[0], window.per_step
    likely = dict.fromkeys(one.rows[0].because for one in slow[:_MOST])
    causes = [_CAUSES[cause] for cause in likely if cause is not None]
    ideal = sum(row.ideal_ns for row in worst.rows) / worst.ns
    yield Match(
        severity="warning" if window.share(per_step(sum(one.lost_ns for one in slow))) >= MODERATE_SHARE else "info",
        claim=f"{worst.name} takes {duration(per_step(worst.ns))} {window.per}, and at most "
        f"{duration(per_step(worst.expected_ns))} is expected: it runs at {percent(ideal)} of the speed in the GPU's "
        "data sheet",
        evidence=(*(_slow_in_words(one, window) for one in slow[:_MOST]), *(why for why, _ in causes)),
        cost_ns_per_step=per_step(sum(one.lost_ns for one in slow)),
        advice=" ".join(advice for _, advice in causes) or None,
    )


def _slow_in_words(slow: _SlowOperator, window: Window) -> str:
    """An operator's calls, their time, and the inputs that take most of it."""
    calls = plural(round(window.per_step(sum(row.count for row in slow.rows)), 2), "call")
    sizes = f" and {plural(more, 'other size')} of inputs" if (more := len(slow.rows) - 1) else ""
    return (
        f"{slow.name} of {slow.rows[0].inputs}{sizes}: {calls} {window.per}, {duration(window.per_step(slow.ns))}; "
        f"expected at most {duration(window.per_step(slow.expected_ns))}"
    )


COMPUTE_RULES: Final[tuple[Rule[Window], ...]] = (
    rule("fp32_where_bf16_fits", _bf16_fits, {"narrow": LOW_PRECISION_SHARE, "least": MODERATE_SHARE}),
    rule("slow_kernels", _slow_kernels, {"least": NOISE_FLOOR, "high": MODERATE_SHARE}),
)


#: A device whose peak takes less than this share of its memory leaves room for a larger batch.
UNUSED_SHARE: Final = 0.50
#: Busy share of a step below which a GPU counts as idle (Nsight Systems' gpu_time_util, PyTorch's TensorBoard plugin).
BUSY_PCT: Final = 50.0


def _unused_memory(window: Window) -> Iterator[Match]:
    entry = window.entry
    shares = (("GPU busy", entry.gpu_busy_pct), ("multiprocessors in use", entry.sm_weighted_pct))
    low = [f"{what}: {percent(value / 100)}" for what, value in shares if value is not None and value < BUSY_PCT]
    device = next((one for one in entry.memory or () if one.device == entry.device), None)
    if not low or device is None or not device.capacity_bytes or device.headroom_bytes is None:
        return
    unused, reserved = device.headroom_bytes / device.capacity_bytes, device.peak_reserved_bytes
    if 1 - unused >= UNUSED_SHARE:
        return
    most = "over 99 %" if unused > 0.99 else percent(unused)
    peak = f"at the peak {size_bytes(device.peak_allocated_bytes)} allocated"
    if reserved is not None:
        peak += f" and {size_bytes(reserved)} reserved"
    yield Match(
        severity="info",
        claim=f"{most} of the memory of GPU {device.device} is never used and the GPU is not busy all the time: a "
        "larger batch may fit and make better use of it",
        evidence=(f"{peak} of {size_bytes(device.capacity_bytes)}", *low),
    )


MEMORY_RULES: Final[tuple[Rule[Window], ...]] = (
    rule("unused_memory", _unused_memory, {"unused": UNUSED_SHARE, "busy": BUSY_PCT / 100}),
)
