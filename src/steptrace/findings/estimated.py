"""Which variant of a study is estimated to be the fastest on GPUs that are not there."""

from steptrace import format as fmt
from steptrace.documents.comparison import Comparison, VariantResult
from steptrace.documents.estimate import Band, Estimate


def leads(study: Comparison) -> bool:
    """Whether estimates answer the study's question: no step was measured on a GPU, and they do not all say the same.

    A study of what is in no estimate, such as data loading, is answered by the machine's own times.
    """
    measured = study.environment is not None and study.environment.gpu is not None and not study.on_simulated_gpu
    gpus = [gpu for gpu in estimated_gpus(study) if _bands(study, gpu)]
    return not measured and any(len(study.variants) == 1 or not all_alike(study, gpu) for gpu in gpus)


def all_alike(study: Comparison, gpu: str) -> bool:
    """Whether all variants have the same estimate on one GPU, as far as its digits go."""
    bands = _bands(study, gpu)
    return len(bands) == len(study.variants) and len(set(map(_words, bands.values()))) == 1


def estimated_gpus(study: Comparison) -> list[str]:
    """The GPUs that a variant has an estimate for, in the order of `estimate_gpus`."""
    return list(dict.fromkeys(one.gpu for variant in study.variants for one in variant.estimates))


def estimate_of(variant: VariantResult, gpu: str) -> Estimate | None:
    """A variant's estimate for one GPU."""
    return next((one for one in variant.estimates if one.gpu == gpu), None)


def estimated_fastest(study: Comparison, gpu: str) -> list[VariantResult]:
    """The variants that may be the fastest, the simplest first: no other's band lies below theirs.

    Empty where a variant has no estimate, or there is but one.
    """
    times = _bands(study, gpu)
    if len(times) < max(2, len(study.variants)):
        return []
    least = min(high for _, high in times.values())
    may_be = [variant for variant in study.variants if times[variant.name][0] <= least]
    return sorted(may_be, key=lambda variant: len(variant.overrides))


def estimated_winner(study: Comparison, gpu: str) -> VariantResult | None:
    """Of the variants that may be the fastest the simplest one whose band lies below its baseline's.

    None where none does: then no difference to the baseline can be estimated.
    """
    times, may_be = _bands(study, gpu), estimated_fastest(study, gpu)
    if len(may_be) == 1:
        return may_be[0]
    faster = [v for v in may_be if v.baseline in times and times[v.baseline][0] > times[v.name][1]]
    return next((variant for variant in faster if variant.can_be_used), next(iter(faster), None))


def estimated_sentence(study: Comparison, gpu: str) -> str:
    """Which variant is estimated to be the fastest on one GPU, or why none is named."""
    times, best = _bands(study, gpu), estimated_winner(study, gpu)
    if len(study.variants) == 1:
        return f"Estimated for {gpu}: {next(map(_words, times.values()))}." if times else f"Not estimated for {gpu}."
    if best is None:
        missing = [f"`{variant.name}`" for variant in study.variants if variant.name not in times]
        if missing:
            return f"No fastest variant can be named for {gpu}: {fmt.enumeration(missing)} cannot be estimated."
        if all_alike(study, gpu):
            return (
                f"All variants have the same estimate for {gpu}. "
                "Data loading and communication between ranks are not included."
            )
        return f"The estimate for {gpu} cannot tell the variants apart: their bands overlap."
    others = len(estimated_fastest(study, gpu)) - 1
    baseline = times.get(best.baseline)
    instead = "" if baseline is None or best.is_baseline else f" instead of {_words(baseline)}"
    wrong = ", but it computes something else" if best.equivalence.status == "differs" else ""
    what = f"to be faster than `{best.baseline}`" if others else "to be the fastest"
    alike = (
        f" {fmt.plural(others, 'other variant')} may be as fast, as the bands overlap; it is the simplest."
        if others
        else ""
    )
    return f"On {gpu} `{best.name}` is estimated {what}{wrong}: {_words(times[best.name])} per step{instead}.{alike}"


def _bands(study: Comparison, gpu: str) -> dict[str, Band]:
    estimates = {variant.name: estimate_of(variant, gpu) for variant in study.variants}
    return {name: one.step_ms for name, one in estimates.items() if one is not None and one.step_ms is not None}


def _words(band: Band) -> str:
    return f"{fmt.duration_ms(band[0], 2)} to {fmt.duration_ms(band[1], 2)}"
