"""Which variant of a study is estimated to be the fastest on GPUs that are not there."""

from steptrace import format as fmt
from steptrace.documents.comparison import Comparison, VariantResult
from steptrace.documents.estimate import Band, Estimate


def leads(study: Comparison) -> bool:
    """Whether estimates are what there is to say of a GPU: there are some, and no step was measured on one."""
    measured = study.environment is not None and study.environment.gpu is not None and not study.on_simulated_gpu
    return not measured and bool(estimated_gpus(study))


def estimated_gpus(study: Comparison) -> list[str]:
    """The GPUs that a variant has an estimate for, in the order of `estimate_gpus`."""
    return list(dict.fromkeys(one.gpu for variant in study.variants for one in variant.estimates))


def estimate_of(variant: VariantResult, gpu: str) -> Estimate | None:
    """A variant's estimate for one GPU."""
    return next((one for one in variant.estimates if one.gpu == gpu), None)


def estimated_winner(study: Comparison, gpu: str) -> VariantResult | None:
    """The variant whose band lies below that of every other one; None where bands overlap or one is missing."""
    times = _bands(study, gpu)
    if len(times) < max(2, len(study.variants)):
        return None
    best = min(times, key=lambda name: times[name][1])
    if any(band[0] <= times[best][1] for name, band in times.items() if name != best):
        return None
    return next(variant for variant in study.variants if variant.name == best)


def estimated_sentence(study: Comparison, gpu: str) -> str:
    """Which variant is estimated to be the fastest on one GPU, or why none is named."""
    times, best = _bands(study, gpu), estimated_winner(study, gpu)
    if len(study.variants) == 1:
        return f"Estimated for {gpu}: {next(map(_words, times.values()))}." if times else f"Not estimated for {gpu}."
    if best is None:
        missing = [f"`{variant.name}`" for variant in study.variants if variant.name not in times]
        if missing:
            return f"No fastest variant can be named for {gpu}: {fmt.enumeration(missing)} cannot be estimated."
        return f"No difference can be estimated for {gpu}: the bands of the fastest variants overlap."
    baseline = times.get(best.baseline)
    instead = "" if baseline is None or best.is_baseline else f" instead of {_words(baseline)}"
    wrong = ", but it computes something else" if best.equivalence.status == "differs" else ""
    return (
        f"`{best.name}` is estimated to be the fastest on {gpu}{wrong}: {_words(times[best.name])} per step{instead}."
    )


def _bands(study: Comparison, gpu: str) -> dict[str, Band]:
    found = {variant.name: estimate_of(variant, gpu) for variant in study.variants}
    return {name: one.step_ms for name, one in found.items() if one is not None and one.step_ms is not None}


def _words(band: Band) -> str:
    return f"{fmt.duration_ms(band[0], 2)} to {fmt.duration_ms(band[1], 2)}"
