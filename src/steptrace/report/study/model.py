"""What several sections of a study's page make of its comparison.

Times are in the unit their name ends in; what was not measured is None.
"""

import math
from pathlib import Path

from steptrace.documents.base import read
from steptrace.documents.comparison import Comparison
from steptrace.documents.variant import VariantResult

#: More variants than this do not fit a screen: the baselines and those that differ most stand for all.
MOST_ROWS = 15
#: More variants than this are rows of a table, never its columns, and their blocks start folded.
MANY = 6


def load_study(path: Path | str) -> Comparison:
    """Read a comparison.json.

    Raises:
        RecordError: the file is missing or does not hold a comparison.
    """
    return read(Path(path), Comparison)


def samples_per_step(study: Comparison) -> tuple[int, ...]:
    """The different numbers of samples that the measured variants' steps take, ascending."""
    return tuple(sorted({v.samples_per_step for v in study.measured if v.samples_per_step is not None}))


def verdict_words(variant: VariantResult) -> str:
    """The verdict as a chart says it; a variant whose answer differs never goes without that mark."""
    words = variant.verdict or "no verdict"
    return f"{words}, but differs" if variant.equivalence.status == "differs" else words


def variants_shown(study: Comparison, most: int = MOST_ROWS) -> list[VariantResult]:
    """All variants in the study's order; of many the baselines and those whose verdict and ratio say the most."""
    if len(study.variants) <= most:
        return list(study.variants)

    def interest(variant: VariantResult) -> tuple[bool, bool, float]:
        ratio = variant.ratio
        decided = ratio is not None and ratio.verdict in ("faster", "slower")
        effect = abs(math.log(ratio.value)) if ratio is not None and ratio.value > 0 else 0.0
        return variant.name == study.baseline, decided, effect

    chosen = sorted(study.variants, key=interest, reverse=True)[:most]
    return [variant for variant in study.variants if variant in chosen]
