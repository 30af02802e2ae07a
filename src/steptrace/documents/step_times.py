"""Unprofiled step times of a variant, their ratio to the baseline, and how uneven they are."""

from typing import Annotated, Literal

from steptrace.documents.base import Document, column, field
from steptrace.documents.note import Note
from steptrace.format import factor
from steptrace.limits import LONG_STEPS

StepVerdict = Literal["baseline", "faster", "slower", "same", "undecided"]


Statistic = Literal["median", "mean"]


class StepTimes(Document, frozen=True):
    """The unprofiled step time of a variant, in ms."""

    median: Annotated[
        float,
        column(
            "Step time",
            "Median over unprofiled steps, the only source of a claim about speed; 95 % of steps stay under p95. In a "
            f"study where some variant's mean is over {factor(LONG_STEPS)} times its median in every run, the mean: "
            "long steps come back, as where a loader falls behind, and a median leaves them out.",
            "ms",
        ),
    ]
    mean: Annotated[float, field("Mean over the same steps.")]
    statistic: Annotated[Statistic, field("Which of them is the step time: the same in all variants of a study.")]
    p95: Annotated[float, field("95th percentile of all steps.")]
    low: Annotated[float | None, field("Lower end of the step time's interval; null with one run.")]
    high: Annotated[float | None, field("Upper end of the interval.")]
    runs: Annotated[int, field("Measured runs.")]
    steps: Annotated[int, field("Steps of all runs.")]

    @property
    def value(self) -> float:
        """The step time, in ms."""
        return self.mean if self.statistic == "mean" else self.median


class RatioToBaseline(Document, frozen=True):
    """Baseline's step time over the variant's: above 1 is faster."""

    value: Annotated[
        float,
        column(
            "Ratio",
            "Baseline's step time over the variant's: above 1 is faster. The interval carries variance between runs.",
        ),
    ]
    low: Annotated[float | None, field("Lower end of the interval.")]
    high: Annotated[float | None, field("Upper end of the interval.")]
    verdict: Annotated[
        StepVerdict | None,
        column(
            "Verdict",
            "Faster or slower: the interval excludes 1 and the effect exceeds the noise floor, corrected for the "
            "number of variants. Same: the whole interval is within the floor, of at most 10 %. Otherwise undecided. "
            "One run, or an IQR above 25 % of the median: no verdict.",
        ),
    ]

    @property
    def excludes_one(self) -> bool:
        """Whether the whole interval lies on one side of 1."""
        return self.low is not None and self.high is not None and (self.low > 1 or self.high < 1)


class Noise(Document, frozen=True):
    """How uneven steps and runs are."""

    iqr_over_median: Annotated[
        float | None, field("Interquartile range over median of the steps, as far as waits for data do not explain it.")
    ]
    drift: Annotated[float | None, field("Change of the step time over a run, median of the runs.")]
    uneven: Annotated[tuple[str, ...], field("The kinds of noise that are above their limits, as sentences.")]
    warnings: Annotated[tuple[str, ...], field("The notes as sentences.")]
    notes: Annotated[tuple[Note, ...], field("What to read with care.")] = ()
