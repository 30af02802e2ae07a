"""What a page shows, as plain data: read from JSON by build.py, rendered by html.py and draw/.

A field is None where a thing was not measured. Times are in the unit their name ends in.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from steptrace.report.changes_model import Changes
from steptrace.report.input_model import InputPipeline
from steptrace.report.overview_model import Overview
from steptrace.report.sites import Agreement, Site, Unknown


@dataclass(frozen=True)
class RunError:
    """How a run or an equivalence check ended that did not end well: its error and the last lines of its log."""

    status: str
    exit_code: int | None
    signal: int | None
    error: str | None
    log_tail: tuple[str, ...]

    @property
    def is_telling(self) -> bool:
        """Whether there is anything to tell: a run that never started left neither an end nor a message."""
        return self.status != "not run" or bool(self.error or self.log_tail)

    @property
    def ending(self) -> str:
        """The end in a few words: "signal 9", "exit code 1"."""
        if self.signal is not None:
            return f"signal {self.signal}"
        return "" if self.exit_code is None else f"exit code {self.exit_code}"


@dataclass(frozen=True)
class Run:
    """One repeat of one variant."""

    variant: str
    repeat: int
    status: str
    seed: int | None
    path: str | None
    median_ms: float | None
    p95_ms: float | None
    steps: int | None
    warmup_left_out: int | None
    error: RunError | None


@dataclass(frozen=True)
class StepTime:
    """Unprofiled step time over a variant's runs; the interval is of the median and None for one run."""

    median: float
    p95: float | None
    low: float | None
    high: float | None
    runs: int | None
    steps: int | None


@dataclass(frozen=True)
class Ratio:
    """Median of the baseline over median of the variant: above 1 is faster."""

    value: float | None
    low: float | None
    high: float | None
    verdict: str | None


@dataclass(frozen=True)
class Equivalence:
    """Loss and gradient of a variant held against the study's float64 reference."""

    status: str
    max_rel_err: float | None = None
    loss_rel_err: float | None = None
    gradient_rel_err: float | None = None
    loss_tolerance: float | None = None
    gradient_tolerance: float | None = None
    predictions_rel_err: float | None = None
    predictions_tolerance: float | None = None
    parameters_rel_err: float | None = None
    parameters_tolerance: float | None = None
    error: RunError | None = None

    @property
    def held(self) -> tuple[tuple[str, float | None, float, bool], ...]:
        """What was held against the reference: its name, relative error, tolerance, and whether it is out of it."""
        pairs = (
            ("loss", self.loss_rel_err, self.loss_tolerance),
            ("gradient", self.gradient_rel_err, self.gradient_tolerance),
            ("predictions", self.predictions_rel_err, self.predictions_tolerance),
            ("parameters", self.parameters_rel_err, self.parameters_tolerance),
        )
        return tuple(
            (name, error, tolerance, error is None or error > tolerance)
            for name, error, tolerance in pairs
            if tolerance is not None
        )


@dataclass(frozen=True)
class Finding:
    """One claim about a cost, with its evidence, an advice and the check that could refute it.

    `cost_share` is the cost as a share of the step, or of a whole trace that marks no steps; `condition` says
    when the rule fires, `basis` where its thresholds come from, `study` names the study that demonstrates it.
    """

    rule: str
    severity: str
    claim: str
    cost_ns_per_step: float | None
    source: str | None
    evidence: tuple[str, ...]
    advice: str | None
    counter_check: str | None
    variant: str | None
    cost_share: float | None = None
    basis: str | None = None
    study: str | None = None
    condition: str | None = None


@dataclass(frozen=True)
class Part:
    """One part of a step's time."""

    label: str
    ms: float


@dataclass(frozen=True)
class Variant:
    """One variant with everything that is known of it."""

    name: str
    status: str
    hypothesis: str | None
    overrides: tuple[str, ...]
    baseline: str | None
    digest: str | None
    runs: tuple[Run, ...]
    step: StepTime | None
    ratio: Ratio | None
    iqr_over_median: float | None
    warnings: tuple[str, ...]
    syncs_measured: float | None
    syncs_predicted: float | None
    syncs_warned: float | None
    predicted_batch_size: int | None
    sync_sites: tuple[Site, ...]
    predicted_sites: tuple[Site, ...]
    predicted_unknown: tuple[Unknown, ...]
    sync_agreement: tuple[Agreement, ...]
    changes: Changes
    overview: Overview
    gpu_busy_pct: float | None
    nvml_util_pct: float | None
    sm_weighted_pct: float | None
    profiled_over_unprofiled: float | None
    step_parts: tuple[Part, ...]
    loss_sections: tuple[Part, ...]
    loss_sections_device: tuple[Part, ...]
    loader_wait_ms: float | None
    input: InputPipeline | None
    peak_allocated_bytes: float | None
    batch_bytes: dict[str, int] | None
    synchronised: tuple[Part, ...]
    operators_per_step: float | None
    kernels_per_step: float | None
    equivalence: Equivalence
    samples_per_step: int | None = None

    @property
    def samples_per_s(self) -> float | None:
        """Samples per second at the median step time."""
        if self.step is None or not self.step.median or self.samples_per_step is None:
            return None
        return self.samples_per_step / self.step.median * 1000

    @property
    def runs_ok(self) -> int:
        """Runs that ended well."""
        return sum(run.status == "ok" for run in self.runs)

    @property
    def is_baseline(self) -> bool:
        """Whether the other variants (of its cell, in a matrix) are compared with this one."""
        return (self.ratio is not None and self.ratio.verdict == "baseline") or self.baseline in (None, self.name)

    @property
    def verdict_words(self) -> str:
        """The verdict as a chart says it; a variant whose answer differs never goes without that mark."""
        words = (self.ratio.verdict if self.ratio is not None else None) or "no verdict"
        return f"{words}, but differs" if self.equivalence.status == "differs" else words


@dataclass(frozen=True)
class Gate:
    """What must hold of a variant: `held`, `broken` or `skipped`, with a sentence unless it is held."""

    variant: str
    key: str
    limits: str
    outcome: str
    text: str


@dataclass(frozen=True)
class Method:
    """How the comparison was made, in the words of comparison.json."""

    interval: str | None
    confidence: float
    noise_floor: float | None
    noise_floor_source: str | None
    correction: str | None


@dataclass(frozen=True)
class Study:
    """A study's comparison, ready to be shown. `path` is its comparison.json."""

    path: Path
    name: str
    title: str
    question: str | None
    paragraphs: tuple[str, ...]
    baseline: str
    scale: str
    environment: tuple[tuple[str, object], ...]
    environments_differ: tuple[str, ...]
    method: Method
    variants: tuple[Variant, ...]
    findings: tuple[Finding, ...]
    gates: tuple[Gate, ...]
    parts_kind: str | None
    #: Runs in a comparison made before all had run, and how many were planned; None for a whole one.
    partial: tuple[int, int] | None = None

    @property
    def measured(self) -> tuple[Variant, ...]:
        """The variants that have a step time."""
        return tuple(variant for variant in self.variants if variant.step is not None)

    @property
    def repeats(self) -> int:
        """The largest number of runs that a variant has."""
        return max((len(variant.runs) for variant in self.variants), default=0)

    @property
    def samples_per_step(self) -> tuple[int, ...]:
        """The different numbers of samples that the measured variants' steps take, ascending."""
        return tuple(sorted({v.samples_per_step for v in self.measured if v.samples_per_step is not None}))

    def fact(self, key: str) -> object:
        """One value of the environment, None if it is unknown."""
        return dict(self.environment).get(key)


@dataclass(frozen=True)
class RunSteps:
    """The step times of one run in milliseconds, in the order they ran.

    `left_out` says per step whether it counts as warm-up; profiled steps are not among them.
    """

    variant: str
    repeat: int
    ms: npt.NDArray[np.float64]
    left_out: npt.NDArray[np.bool_]

    @property
    def timed(self) -> npt.NDArray[np.float64]:
        """The steps that the comparison rests on."""
        return self.ms[~self.left_out]

    @property
    def warmup(self) -> npt.NDArray[np.float64]:
        """The steps that were left out as warm-up."""
        return self.ms[self.left_out]


@dataclass(frozen=True)
class IndexEntry:
    """One line of the index: a study or an imported trace, what is wrong with it, and the page that tells of it."""

    name: str
    title: str
    headline: str
    href: str
    scale: str | None
    machine: str | None
    problems: tuple[str, ...]
    detail: str
