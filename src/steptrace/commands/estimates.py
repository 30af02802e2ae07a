"""The estimates of predictions: of programs, and of a study's variants beside their baseline."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from steptrace.commands.follow import FollowedProgram
from steptrace.documents.estimate import Estimate
from steptrace.documents.prediction import PredictedStep
from steptrace.estimate.gpus import Gpu
from steptrace.words.estimate import with_reasons


@dataclass(frozen=True)
class Baselines:
    """What the variants of a study are compared with.

    Attributes:
        by_variant: the name of each variant's baseline; of a matrix the one with the same values.
        shown: the name that is printed: for a matrix, the entry of the study's file.
    """

    by_variant: Mapping[str, str]
    shown: str


def estimates_by_name(
    by_batch: Mapping[int | None, Sequence[FollowedProgram]], gpus: Sequence[Gpu], baselines: Mapping[str, str] | None
) -> dict[str, list[Estimate]]:
    """The estimates of each program or variant, for each batch on each GPU.

    Args:
        by_batch: what was followed, by the batch that was asked for; None where it is the program's own.
        gpus: the GPUs.
        baselines: the name of the baseline of each variant of a study; None for programs.
    """
    by_name: dict[str, dict[int | None, PredictedStep]] = {}
    for batch, programs in by_batch.items():
        for program in programs:
            if program.prediction is not None:
                # A study's prediction says how many samples a step has, which may be several batches.
                predicted_batch = program.prediction.batch_size
                samples = (
                    predicted_batch
                    if batch is None or (baselines is not None and predicted_batch is not None)
                    else batch
                )
                by_name.setdefault(program.name, {})[samples] = program.prediction
    if baselines is None:
        return {name: estimates(predictions, gpus) for name, predictions in by_name.items()}
    return _estimates_of_study(by_name, baselines, gpus)


def estimates(predictions: Mapping[int | None, PredictedStep], gpus: Sequence[Gpu]) -> list[Estimate]:
    """The estimate of each batch on each GPU; `predictions` by batch, None where it is not known."""
    from steptrace.estimate.step import estimate_prediction  # imports numpy, as `--help` need not

    peaks = _peaks(predictions)
    return [
        with_reasons(estimate_prediction(replace(prediction, batch_size=batch), gpu, peaks=peaks))
        for gpu in gpus
        for batch, prediction in predictions.items()
    ]


def _estimates_of_study(
    by_variant: Mapping[str, Mapping[int | None, PredictedStep]], baselines: Mapping[str, str], gpus: Sequence[Gpu]
) -> dict[str, list[Estimate]]:
    """The estimates of the variants of a study, each compared with its baseline at the same batch."""
    from steptrace.estimate.step import estimate_variants, followed_step

    of_variants: dict[str, list[Estimate]] = {name: [] for name in by_variant}
    batches = list(dict.fromkeys(batch for predictions in by_variant.values() for batch in predictions))
    for gpu in gpus:
        for batch in batches:
            at_batch = {
                name: replace(predictions[batch], batch_size=batch)
                for name, predictions in by_variant.items()
                if batch in predictions
            }
            followed = {name: followed_step(prediction) for name, prediction in at_batch.items()}
            peaks = {name: _peaks(by_variant[name]) for name in followed}
            estimated = estimate_variants(followed, baselines, gpu, peaks=peaks, predictions=at_batch)
            for name, estimate in estimated.items():
                of_variants[name].append(with_reasons(estimate))
    return of_variants


def _peaks(predictions: Mapping[int | None, PredictedStep]) -> dict[int, int]:
    """Peak memory by batch, where both are known."""
    return {
        batch: prediction.peak_memory_bytes
        for batch, prediction in predictions.items()
        if batch is not None and prediction.peak_memory_bytes is not None
    }
