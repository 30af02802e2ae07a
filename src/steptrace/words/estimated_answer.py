"""Which variant is estimated to be the fastest on a GPU, in words."""

from steptrace import format as fmt
from steptrace.documents.answer import EstimatedAnswer
from steptrace.documents.estimate import Band
from steptrace.words.estimate import MOST_NAMED, NOT_ESTIMATED, times_words


def estimated_sentence(answer: EstimatedAnswer) -> str:
    """Which variant is estimated to be the fastest on one GPU, or why none is named."""
    gpu = answer.gpu
    missing = [f"`{name}`" for name in answer.not_estimated]
    match answer.outcome:
        case "one_variant":
            return f"Estimated for {gpu}: {_band(answer.step_ms)}."
        case "not_estimated":
            return f"Not estimated for {gpu}."
        case "some_not_estimated":
            return f"No fastest variant can be named for {gpu}: {fmt.enumeration(missing)} cannot be estimated."
        case "all_alike":
            return (
                f"All variants have the same estimate for {gpu}. "
                "Data loading, waiting for slower ranks and workspaces of libraries are not included."
            )
        case "cannot_tell":
            return f"Which is the fastest on {gpu} cannot be told by estimates."
        case "other_batches":
            return f"Batches differ, so step times on {gpu} are not compared; the page has samples per second."
        case "fastest":
            return " ".join(_fastest(answer, missing))


def _fastest(answer: EstimatedAnswer, missing: list[str]) -> list[str]:
    """The sentences on the variant that is estimated to be the fastest."""
    parts = ["the fastest"] if answer.is_alone and not answer.is_about_as_fast else []
    if answer.times_as_fast is not None and answer.is_about_as_fast:
        most = fmt.share_to_tenths(answer.times_as_fast[1] - 1)
        parts.append(f"about as fast as `{answer.baseline}` (at most {most} faster)")
    elif answer.times_as_fast is not None:
        parts.append(f"{times_words(answer.times_as_fast)} times as fast as `{answer.baseline}`")
    wrong = ", but it computes something else" if answer.computes_something_else else ""
    instead = "" if answer.baseline_ms is None else f" instead of {_band(answer.baseline_ms)}"
    saves = "" if answer.saved_ms is None else f" (on one and the same GPU it saves {_band(answer.saved_ms)})"
    estimated = f"{_band(answer.step_ms)} per step{instead}{saves}"
    sentences = [f"On {answer.gpu} `{answer.name}` is estimated to be {', '.join(parts)}{wrong}: {estimated}."]
    if not_slower := [f"`{name}`" for name in answer.alike]:
        other = fmt.enumeration(not_slower) if len(not_slower) <= MOST_NAMED else f"{len(not_slower)} other variants"
        sentences.append(f"{other} cannot be told from it.")
    if missing:
        sentences.append(f"{fmt.enumeration(missing)} cannot be estimated and may be faster.")
    return sentences


def _band(ends: Band | None) -> str:
    return NOT_ESTIMATED if ends is None else fmt.band_ms(*ends)
