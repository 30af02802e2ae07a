"""Why two programs cannot be compared, in words."""

from collections.abc import Mapping
from typing import Final

from steptrace.documents.equivalence import NotComparable, NotComparableCode

_WORDS: Final[Mapping[NotComparableCode, str]] = {
    "no_steps": "the program made no training step",
    "no_scalar_loss": "the program's backward passes do not start from a scalar, so its loss is unknown",
    "baseline_loss_not_finite": "the baseline's loss is infinite or NaN",
    "other_samples": "a step has {samples} samples, the baseline's has {baseline_samples}",
    "other_gradients": "the gradients' sizes differ from the baseline's",
    "baseline_varies": "the baseline's results differ between two runs: it needs a fixed seed",
}


def not_comparable_text(why: NotComparable) -> str:
    """The reason as a sentence, without its capital letter and full stop."""
    return _WORDS[why.code].format(samples=why.samples, baseline_samples=why.baseline_samples)
