"""The page and the Markdown of `steptrace compare`: one study's results from two machines, versions or dates."""

from steptrace import format as fmt
from steptrace.judging.pair import Pair, VariantPair, headline
from steptrace.markdown import clean, table
from steptrace.report.draw.bars import Part, one_part
from steptrace.report.page.markup import page, render

#: With more variants the bars are left out: the table has them all.
MOST_BARS = 12
STEP_HEAD = ("Variant", "Step in A", "Step in B", "A / B", "95 % interval", "B is")


def page_html(found: Pair) -> str:
    """The whole page."""
    toc = [
        ("steps", "Step times"),
        ("figures", "Other figures"),
        ("environment", "Environment"),
        ("findings", "Findings"),
    ]
    body = render(
        "pair",
        found=found,
        toc=toc,
        headline=headline(found),
        step_head=STEP_HEAD,
        steps=step_rows(found),
        figures=figure_rows(found),
        bars=_bars(found),
    )
    return page(f"{found.title}: A and B – steptrace", body, toc)


def markdown(found: Pair) -> str:
    """The same as Markdown."""
    parts = [f"## {clean(found.title)} (`{found.study}`): A and B", "", headline(found), ""]
    parts += [f"> {note}\n" for note in found.notes]
    parts.append(table(STEP_HEAD, step_rows(found)))
    if rows := figure_rows(found):
        parts.append(table(("Variant", "Figure", "A", "B"), rows))
    if found.environment:
        parts.append(table(("Environment", "A", "B"), [(e.name, e.a, e.b) for e in found.environment]))
    for side, texts in (("A", found.findings_only_a), ("B", found.findings_only_b)):
        parts += [f"Findings in {side} only:\n", *(f"- {clean(text)}" for text in texts), ""] if texts else []
    return "\n".join(parts)


def step_rows(found: Pair) -> list[tuple[str, ...]]:
    """The step times of every variant as words."""
    return [
        (
            variant.name,
            *(fmt.step_time(*(side or (None, None, None)))[0] for side in (variant.a_ms, variant.b_ms)),
            *_ratio(variant),
            variant.verdict or "no verdict",
        )
        for variant in found.variants
    ]


def figure_rows(found: Pair) -> list[tuple[str, str, str, str]]:
    """The other figures that differ: variant, figure, A, B."""
    return [
        (variant.name, figure.name, figure.a or fmt.NOT_MEASURED, figure.b or fmt.NOT_MEASURED)
        for variant in found.variants
        for figure in variant.differing
    ]


def _ratio(variant: VariantPair) -> tuple[str, str]:
    if variant.ratio is None:
        return fmt.NOT_MEASURED, fmt.NOT_MEASURED
    value, low, high = variant.ratio
    return fmt.ratio(value, low, high), fmt.ratio_interval(low, high)


def _bars(found: Pair) -> str | None:
    shown = [v for v in found.variants if v.a_ms is not None and v.b_ms is not None]
    if not shown or len(shown) > MOST_BARS:
        return None
    rows = [
        (f"{variant.name}, {side}", [Part("", ms[0])])
        for variant in shown
        for side, ms in (("A", variant.a_ms), ("B", variant.b_ms))
        if ms is not None
    ]
    return one_part(rows, "ms per step, medians of unprofiled steps")
