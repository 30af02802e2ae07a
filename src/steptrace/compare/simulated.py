"""What stays of a comparison on a simulated GPU (tests/standin): its times and values are no measurements."""

from typing import Final

from msgspec.structs import replace

from steptrace.documents.comparison import Comparison
from steptrace.documents.run import is_simulated
from steptrace.documents.steps import STEP_FIGURES
from steptrace.documents.variant import Equivalence, Noise, VariantResult

_NOTHING_COMPUTED: Final = Equivalence(status="not comparable", reason="the GPU is simulated and computes nothing")
#: What only a GPU can measure; pages and rules take it for not measured.
_MEASURED: Final = (
    "step_ms", "ratio", "nvml_util_pct", "profiled_over_unprofiled", "synced_sections_ms", "input", "trace",
    "ranks", "communication", *(figure.name for figure in STEP_FIGURES),
)  # fmt: skip


def without_simulated(comparison: Comparison) -> Comparison:
    """The comparison without what a simulated GPU measured; that of another device as it is."""
    if comparison.environment is None or not is_simulated(comparison.environment.gpu):
        return comparison
    return replace(comparison, alike=(), variants=tuple(map(_unmeasured, comparison.variants)))


def _unmeasured(variant: VariantResult) -> VariantResult:
    diff = variant.sync_diff
    return replace(
        variant,
        **dict.fromkeys(_MEASURED),
        noise=Noise(iqr_over_median=None, drift=None, uneven=(), warnings=()),
        runs=tuple(replace(run, median_ms=None, mean_ms=None, p95_ms=None) for run in variant.runs),
        syncs=replace(variant.syncs, measured_per_step=None),
        sync_diff=None if diff is None or diff.basis == "measured" else diff,
        equivalence=_NOTHING_COMPUTED,
    )
