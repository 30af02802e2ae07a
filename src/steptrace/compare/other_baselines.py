"""Ratios to baselines other than the study's own, for a reader who asks how two other variants compare.

Each is made as the study's own is (`timing.py`): the same intervals and noise floor, and Holm's correction over the
candidates that the other baseline would have had. Whoever chooses a baseline after seeing the results still looks for
what stands out, so it is weaker evidence.
"""

from collections.abc import Mapping
from typing import Final

from steptrace.compare.load import Study
from steptrace.compare.timing import refusal, run_medians, spreads
from steptrace.documents.comparison import OtherBaseline
from steptrace.stats import Ratio, holm, ratios, verdict

#: None are computed for more variants: their number grows with the square.
MOST_VARIANTS: Final = 24


def other_baselines(study: Study, noise_floor: float) -> tuple[OtherBaseline, ...]:
    """The ratios of every measured variant to every other one; empty for fewer than three variants, or too many."""
    measured = {variant.name: variant for variant in study.variants if variant.measured}
    if not 2 < len(measured) <= MOST_VARIANTS:
        return ()
    medians = {name: run_medians(variant.runs) for name, variant in measured.items()}
    spread = spreads(study)
    return tuple(_against(study, name, ratios(medians, name), (spread, noise_floor)) for name in measured)


def _against(
    study: Study,
    baseline: str,
    found: Mapping[str, Ratio],
    limits: tuple[Mapping[str, float | None], float],
) -> OtherBaseline:
    spread, floor = limits
    adjusted = holm({name: ratio.p_value for name, ratio in found.items() if ratio.p_value is not None})
    verdicts = [
        None if refusal(study, (name, baseline), spread) else verdict(ratio, adjusted.get(name), floor)
        for name, ratio in found.items()
    ]
    return OtherBaseline(
        baseline=baseline,
        variants=tuple(found),
        ratios=tuple(ratio.value for ratio in found.values()),
        lows=tuple(ratio.low for ratio in found.values()),
        highs=tuple(ratio.high for ratio in found.values()),
        verdicts=tuple(verdicts),
    )
