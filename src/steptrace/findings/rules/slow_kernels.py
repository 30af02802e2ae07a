"""Operators take longer than an ordinary kernel for their inputs would."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Final

from steptrace.documents.base import Document, field
from steptrace.documents.roofline import OperatorRoofline, SlowCause
from steptrace.findings.rule import Match, Rule, TraceFigures, Words, advise
from steptrace.findings.thresholds import NOISE, SEVERE
from steptrace.findings.window import Window
from steptrace.format import duration, enumeration, plural

#: The most operators that are named; those that lose most come first.
_MOST_NAMED: Final = 3


class SlowOperator(Document, frozen=True, kw_only=True):
    """The calls of an operator in a mean step that take longer than the upper end of their estimate."""

    name: Annotated[str, field("The operator.")]
    ns: Annotated[float, field("GPU time of these calls.")]
    expected_ns: Annotated[float, field("What they should take at most.")]
    calls: Annotated[float, field("How many.")]
    inputs: Annotated[str, field("The inputs that lose most time.")]
    other_sizes: Annotated[int, field("How many other sizes of inputs are slow, too.")]
    ideal_share: Annotated[float, field("Time at the data sheet's speed, as a share of `ns`.")]
    cause: Annotated[SlowCause | None, field("Likely cause, of the inputs that lose most time.")]

    @property
    def lost_ns(self) -> float:
        """The time that an ordinary kernel would save."""
        return self.ns - self.expected_ns


class Figures(TraceFigures, frozen=True, kw_only=True):
    """The slow operators of a step."""

    operators: Annotated[tuple[SlowOperator, ...], field("Those that lose most time.")]
    others: Annotated[int, field("How many more there are.")]
    ns: Annotated[float, field("GPU time of all of them.")]
    expected_ns: Annotated[float, field("What all of them should take at most.")]


def _find(window: Window) -> Iterator[Match[Figures]]:
    slow = [
        row for row in _slow_operators(window.entry.roofline, window) if row.lost_ns >= NOISE.value * window.step_ns
    ]
    if not slow:
        return
    lost_ns = sum(row.lost_ns for row in slow)
    yield Match(
        severity="warning" if window.share(lost_ns) >= SEVERE.value else "info",
        figures=Figures(
            steps=window.steps,
            step_ns=window.step_ns,
            operators=tuple(slow[:_MOST_NAMED]),
            others=len(slow[_MOST_NAMED:]),
            ns=sum(row.ns for row in slow),
            expected_ns=sum(row.expected_ns for row in slow),
        ),
        cost_ns_per_step=lost_ns,
    )


def _slow_operators(rows: Iterable[OperatorRoofline], window: Window) -> list[SlowOperator]:
    """The operators with calls slower than expected, over all sizes of inputs; the one that loses most time first."""
    by_name: dict[str, list[OperatorRoofline]] = {}
    for row in sorted(rows, key=lambda row: row.slowest_ns - row.ns):
        if row.ns > row.slowest_ns:
            by_name.setdefault(row.name, []).append(row)
    slow = [
        SlowOperator(
            name=name,
            ns=window.per_step(sum(row.ns for row in sizes)),
            expected_ns=window.per_step(sum(row.slowest_ns for row in sizes)),
            calls=window.per_step(sum(row.count for row in sizes)),
            inputs=sizes[0].inputs,
            other_sizes=len(sizes) - 1,
            ideal_share=sum(row.ideal_ns for row in sizes) / sum(row.ns for row in sizes),
            cause=sizes[0].because,
        )
        for name, sizes in by_name.items()
    ]
    return sorted(slow, key=lambda row: -row.lost_ns)


def _words(figures: Figures) -> Words:
    per = figures.per
    more = [plural(figures.others, "more operator")] if figures.others else []
    named = enumeration([*(f"`{row.name}`" for row in figures.operators), *more])
    verb = "takes" if len(figures.operators) == 1 else "take"
    causes = [_CAUSES[cause] for cause in dict.fromkeys(row.cause for row in figures.operators) if cause is not None]
    return Words(
        f"{named} {verb} {duration(figures.ns)} {per}, and at most {duration(figures.expected_ns)} is expected",
        (*(_in_words(row, per) for row in figures.operators), *(reason for reason, _ in causes)),
        advice=tuple(part for _, advice in causes for part in advice),
    )


def _in_words(slow: SlowOperator, per: str) -> str:
    """An operator's calls, their time, and the inputs that take most of it."""
    sizes = f" and {plural(slow.other_sizes, 'other size')} of inputs" if slow.other_sizes else ""
    return (
        f"{slow.name} of {slow.inputs}{sizes}: {plural(round(slow.calls, 2), 'call')} {per}, {duration(slow.ns)}; "
        f"expected at most {duration(slow.expected_ns)}, at the data sheet's speed "
        f"{duration(slow.ideal_share * slow.ns)}"
    )


_MORE_BLOCKS: Final = advise(
    "Let the kernel run in more blocks: give it its inputs in another shape, or use another operator.",
    "The cross-entropy of pixels, for example, runs in one block if its inputs are flattened to N x C, and in "
    "many as N x C x H x W: use its `ignore_index` to leave pixels out, instead of an index or a mask.",
)
#: The sentence on a cause, and what to do about it.
_CAUSES: Final[Mapping[SlowCause, tuple[str, tuple[str, ...]]]] = {
    "misaligned_sizes": (
        "rows of these 16-bit matrices are no multiple of 8 long, so tensor cores may not be used",
        advise("Pad the sizes that go into products to multiples of 8 (vocabulary, features, batch)."),
    ),
    "strided_inputs": (
        "inputs have gaps or are broadcast: more bytes are moved than are used",
        advise("Make the input contiguous once where it is made, or change the order of its dimensions."),
    ),
    "few_blocks": (
        "its kernel runs in so few blocks that more than half of the GPU's multiprocessors stay idle",
        _MORE_BLOCKS,
    ),
    "small_calls": (
        "a call has less work than the start of a kernel takes",
        advise("Let one kernel do the work of many: a larger batch, a fused operator, or torch.compile."),
    ),
}

RULE: Final = Rule(
    name="slow_kernels",
    topic="compute",
    figures=Figures,
    words=_words,
    in_trace=_find,
    condition="calls of an operator, over all sizes of its inputs, take longer than the upper end of their estimate "
    "(docs/estimates.md), by at least {least} of the step; a warning from {high} on",
    thresholds={"least": NOISE, "high": SEVERE},
    source="the bands of estimates come from published kernels: nine of ten of the same class are faster",
    advice=advise(
        "Check which kernel the operator runs (operators and kernels on this page), and whether another operator "
        "of PyTorch does the same work faster.",
    ),
    counter_check="A kernel that runs beside those of another stream is slow for that reason: look at the sections "
    "Streams and Timeline of a step. Change only the sizes or the memory format, and measure again.",
    gpu_work=True,
)
