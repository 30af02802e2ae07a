"""The section on the input pipeline: which variants wait for their data, and what loading it is made of."""

from msgspec.structs import asdict

from steptrace import format as fmt
from steptrace.documents.comparison import Comparison, VariantResult
from steptrace.report.draw.bars import Part, stacked_bars
from steptrace.report.draw.svg import InlineSvg
from steptrace.report.page.markup import Html, render


def input_pipeline(study: Comparison) -> Html | None:
    """Waits by variant with their verdict, and the parts of loading.

    None if no variant is input-bound and no pass timed the parts of loading: the study is about something else.
    """
    with_input = [variant for variant in study.variants if variant.input is not None]
    timed = [variant for variant in with_input if variant.input is not None and variant.input.breakdown_ms]
    bound = [
        variant for variant in with_input if variant.input is not None and variant.input.verdict in ("moderate", "high")
    ]
    if not timed and not bound:
        return None
    waits = [v.input.wait_ms for v in with_input if v.input is not None and v.input.wait_ms is not None]
    parts = (
        [part for part, ms in _loading(timed[0]).items() if any(_loading(v)[part] is not None for v in timed)]
        if timed
        else []
    )
    return render(
        "study/input_pipeline",
        variants=with_input,
        wait_chart=_waits(with_input),
        loading_chart=_parts(timed) if timed else None,
        has_idle=any(variant.input is not None and variant.input.idle_part is not None for variant in with_input),
        parts=parts,
        loading={variant.name: _loading(variant) for variant in with_input},
        unit=fmt.unit_for_ms(waits),
        parts_unit=fmt.unit_for_ms([ms for v in timed for ms in _loading(v).values() if ms is not None]),
    )


def _loading(variant: VariantResult) -> dict[str, float | None]:
    """The parts of loading a batch, in the order a batch goes through them; none without such a pass."""
    return {} if variant.input is None or variant.input.breakdown_ms is None else asdict(variant.input.breakdown_ms)


def _waits(variants: list[VariantResult]) -> InlineSvg | None:
    """A bar a variant: the mean step time, of which the waiting that counts, and that which a busy GPU hides."""
    rows = []
    for variant in variants:
        waits = variant.input
        if waits is None or waits.wait_ms is None or waits.counted_ms is None or waits.step_ms is None:
            continue
        rest = max(waits.step_ms - waits.wait_ms, 0.0)  # a step by CUDA events can be shorter than the host's wait
        named = {"waiting": waits.counted_ms, "hidden_wait": waits.wait_ms - waits.counted_ms, "rest": rest}
        rows.append((variant.name, [Part(name, ms) for name, ms in named.items()]))
    return stacked_bars(rows, "ms per unprofiled step, mean") if rows else None


def _parts(variants: list[VariantResult]) -> InlineSvg:
    rows = [(v.name, [Part(name, ms) for name, ms in _loading(v).items() if ms is not None]) for v in variants]
    return stacked_bars(rows, "ms of work per batch")
