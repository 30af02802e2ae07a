"""The rule on operators that are far from what the GPU's data sheet allows."""

from collections.abc import Iterator, Mapping
from typing import Final

from steptrace.findings.model import Match, Rule, rule
from steptrace.findings.window import Window
from steptrace.format import count, duration
from steptrace.limits import MODERATE_SHARE, NOISE_FLOOR

#: So many operators are named at most, those first that lose most.
_MOST: Final = 3
_CAUSES: Final[Mapping[str, tuple[str, str]]] = {
    "multiple of 8": (
        "rows of these 16-bit matrices are no multiple of 8 long, so tensor cores may not be used",
        "Pad the sizes that go into products to multiples of 8 (vocabulary, features, batch).",
    ),
    "strided": (
        "inputs have gaps or are broadcast: more bytes are moved than are used",
        "Make the input contiguous once where it is made, or change the order of its dimensions.",
    ),
    "tiny": (
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
        claim=f"{worst.name} runs at {count(worst.roofline_pct)} % of the speed in the GPU's data sheet, and takes "
        f"{duration(window.per_step(worst.ns))} {window.per}",
        evidence=(
            *(
                f"{row.name} of {row.inputs}: {count(window.per_step(row.count))} calls {window.per} take "
                f"{duration(window.per_step(row.ns))}; expected at most {duration(window.per_step(row.slowest_ns))}"
                for row in slow[:_MOST]
            ),
            *(why for why, _ in causes),
        ),
        cost_ns_per_step=lost_ns,
        advice=" ".join(advice for _, advice in causes) or None,
    )


ROOFLINE_RULES: Final[tuple[Rule[Window], ...]] = (
    rule("slow_kernels", _slow_kernels, {"least": MODERATE_SHARE, "noise": NOISE_FLOOR}),
)
