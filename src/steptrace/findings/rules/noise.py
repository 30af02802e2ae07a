"""A variant's step times are uneven."""

from collections.abc import Iterator
from typing import Annotated, Final

from steptrace.documents.base import field
from steptrace.documents.note import UNEVEN, Note
from steptrace.documents.variant import VariantResult
from steptrace.findings.rule import BaseFigures, Match, Rule, Threshold, Words, advise, per_variant
from steptrace.format import share
from steptrace.stats import IQR_REFUSED, IQR_WARNING
from steptrace.words.notes import note_texts

_SOURCE: Final = "torch.utils.benchmark warns at the same shares"
_WARNED: Final = Threshold(IQR_WARNING, _SOURCE)
_REFUSED: Final = Threshold(IQR_REFUSED, _SOURCE)


class Figures(BaseFigures, frozen=True, kw_only=True):
    """How uneven the steps are."""

    iqr_over_median: Annotated[float, field("Interquartile range over median of the steps.")]
    notes: Annotated[tuple[Note, ...], field("In which ways steps or runs are uneven.")]


def _find(variant: VariantResult) -> Iterator[Match[Figures]]:
    spread = variant.noise.iqr_over_median
    if spread is None or spread <= _WARNED.value:
        return
    notes = tuple(note for note in variant.noise.notes if note.code in UNEVEN)
    yield Match(
        severity="high" if spread > _REFUSED.value else "warning",
        figures=Figures(iqr_over_median=spread, notes=notes),
    )


def _words(figures: Figures) -> Words:
    spread = figures.iqr_over_median
    claim = f"step times are uneven: their interquartile range is {share(spread)} of the median"
    return Words(
        claim + (", too much for a verdict" if spread > _REFUSED.value else ""),
        note_texts(figures.notes),
    )


RULE: Final = Rule(
    name="noise",
    topic="method",
    figures=Figures,
    words=_words,
    in_study=per_variant(_find),
    condition="IQR/median of the steps is above {warned}; above {refused} there is no verdict",
    thresholds={"warned": _WARNED, "refused": _REFUSED},
    advice=advise("Free the machine of other work, fix the clocks, or time more and longer steps."),
    counter_check="Look at the plot of the steps: two levels are a pattern of the training, not noise.",
)
