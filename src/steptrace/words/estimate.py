"""Estimates for GPUs that are not there, in words."""

from typing import Final

from steptrace import format as fmt
from steptrace.documents.estimate import Band, ClassWork, Estimate, PairedDifference

NOT_ESTIMATED: Final = "not estimated"
#: Most variants that are named; of more only the number is given.
MOST_NAMED: Final = 4


def step_words(estimate: Estimate) -> str:
    """The band of the step time, or "not estimated"."""
    return NOT_ESTIMATED if estimate.step_ms is None else fmt.band_ms(*estimate.step_ms)


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
