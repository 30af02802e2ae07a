"""Estimates for GPUs that are not there, in words."""

from dataclasses import replace
from typing import Final

from steptrace import format as fmt
from steptrace.documents.estimate import (
    COMPILED,
    LEAST_COVERED,
    Band,
    ClassWork,
    Estimate,
    NotEstimated,
    PairedDifference,
)

NOT_ESTIMATED: Final = "not estimated"
#: Most variants that are named; of more only the number is given.
MOST_NAMED: Final = 4
#: Below this ratio, how many times as fast is said with one more digit.
_NEARLY_AS_FAST: Final = 1.1
#: Most operators that the reason for a missing step time names.
_MOST_OPERATORS: Final = 3


def step_words(estimate: Estimate) -> str:
    """The band of the step time, or "not estimated"."""
    return NOT_ESTIMATED if estimate.step_ms is None else fmt.band_ms(*estimate.step_ms)


def with_reasons(estimate: Estimate) -> Estimate:
    """The estimate as users get it: its codes also in words, in each `reason`."""
    return replace(
        estimate,
        reason=reason_words(estimate) if estimate.step_ms is None else None,
        not_estimated=tuple(replace(row, reason=uncovered_words(row)) for row in estimate.not_estimated),
        assumed=tuple(replace(row, reason=uncovered_words(row)) for row in estimate.assumed),
    )


def reason_words(estimate: Estimate) -> str:
    """Why a step has no time, in words; empty if it has one."""
    match estimate.without_time:
        case None:
            return estimate.reason or ""  # an earlier version has written the reason in words alone
        case "nothing_ran":
            return "nothing ran on the virtual device"
        case "only_copies":
            return "nothing but copies ran on the virtual device"
        case "compiled_code":
            return _compiled_code(estimate)
        case "too_little_covered":
            names: dict[str, str] = {}
            for row in estimate.not_estimated:
                names.setdefault(row.name.removesuffix(".default"), uncovered_words(row))
            listed = ", ".join(f"{name} ({why})" for name, why in list(names.items())[:_MOST_OPERATORS])
            covered = fmt.percent(estimate.covered_pct)
            return f"rules cover {covered} of the GPU work, and {fmt.setting(LEAST_COVERED)} are needed: {listed}"


def _compiled_code(estimate: Estimate) -> str:
    """The calls of torch.compile, and the most that their code takes."""
    rows = [row for row in estimate.not_estimated if row.name == COMPILED]
    lines = dict.fromkeys(fmt.place(row.file, row.line) for row in rows if row.file is not None)
    where = f" at {fmt.enumeration(list(lines))}" if lines else ""
    most = ""
    if estimate.uncompiled_ms is not None:
        longest = fmt.duration_ms(estimate.uncompiled_ms[1], 2)
        most = f"; the same code without torch.compile takes at most {longest}"
    return f"it uses torch.compile{where}, whose kernels cannot be predicted{most}"


def uncovered_words(row: NotEstimated) -> str:
    """Why an operator has no rule, or what its time was assumed from, in words."""
    match row.code:
        case None:
            return row.reason  # an earlier version has written the reason in words alone
        case "no_measurements":
            return "no measurements of such operators"
        case "no_peak":
            return "the GPU's data sheet has no rate for its type"
        case "unknown_kernels":
            return "its kernels are not known"
        case "pcie":
            return f"taken at {_assumed_share(row.bandwidth_pct)} of PCIe's data sheet rate, not measured"
        case "own_kernel":
            return f"{_of_bytes(row)}, not tested"
        case "custom_operator":
            return f"{_of_bytes(row)}, not tested; declare its cost by steptrace.operator_cost"
        case "declared_cost":
            return (
                f"its declared FLOP are taken at {_assumed_share(row.arithmetic_pct)} of the peak, its declared bytes "
                f"at {_assumed_share(row.bandwidth_pct)} of the bandwidth, not tested"
            )


def _of_bytes(row: NotEstimated) -> str:
    return f"its tensors' bytes are taken at {_assumed_share(row.bandwidth_pct)} of the bandwidth"


def _assumed_share(band_pct: Band | None) -> str:
    return "an unknown share" if band_pct is None else f"about {fmt.band_percent(*band_pct)}"


def busy_words(estimate: Estimate) -> str:
    """The band of GPU busy, or "not estimated"."""
    if estimate.gpu_busy_pct is None:
        return NOT_ESTIMATED
    return fmt.band_percent(*estimate.gpu_busy_pct)


def rate_words(samples_per_s: Band) -> str:
    """Samples per second, in three digits."""
    low, high = (fmt.count(fmt.rounded(end)) for end in samples_per_s)
    return low if low == high else f"{low} to {high}"


def tested_words(work: ClassWork) -> str:
    """Whether a class of kernels was tested against measurements, and why its band is wide nevertheless."""
    return f"{'yes' if work.tested else 'no'}{', varies with the version of PyTorch' if work.varies else ''}"


def memory_words(estimate: Estimate, *, says_it_fits: bool = True) -> str:
    """Peak memory, and whether it fits; without `says_it_fits` the text says so only if it does not fit."""
    if estimate.peak_memory_bytes is None:
        return NOT_ESTIMATED
    form = " (without torch.compile)" if estimate.is_compiled else ""
    fits = (", fits" if says_it_fits else "") if estimate.fits else ", does not fit"
    return f"{fmt.size_bytes(estimate.peak_memory_bytes)}{fits}{form}"


def difference_words(pair: PairedDifference, also: str = "") -> str:
    """The range of what a step saves against another, or that it cannot be told. `also` follows the figures."""
    more = f", {also}" if also else ""
    if pair.is_faster or pair.is_slower:
        return f"{'saves ' if pair.is_faster else ''}{saved_words(pair)}{more}"
    return f"{saved_words(pair)} ({fmt.share(pair.faster_pct / 100)} of the draws are faster{more})"


def saved_words(pair: PairedDifference) -> str:
    """The range of what a step saves against its baseline, for a table; "cannot be told" if the range holds 0."""
    low, high = pair.saved_ms
    if pair.is_faster:
        return fmt.band_ms(low, high)
    if pair.is_slower:
        return f"costs {fmt.band_ms(-high, -low)}"
    return "cannot be told"


def most_waiting_in_words(ms: float, gpu: str) -> str:
    """The most that waits cost, in words. The bound holds for any overlap, so it is far above an estimated saving."""
    most = f"at most {fmt.duration_ms(ms, 2)} per step on {gpu}"
    return f"{most}, even if they keep the host and the GPU from ever working at the same time (data loading aside)"


def times_words(ends: Band) -> str:
    """How many times as fast, in three digits where two would say "1.0"."""
    digits = 3 if ends[0] < _NEARLY_AS_FAST else 2
    return " to ".join(dict.fromkeys(fmt.significant(end, digits) for end in ends))
