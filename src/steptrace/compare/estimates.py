"""`estimates` of comparison.json: a variant's followed step on GPUs that are not there."""

from collections.abc import Sequence
from pathlib import Path

from steptrace.compare.explain import PREDICTION_FILE
from steptrace.documents.estimate import Estimate
from steptrace.errors import RecordError
from steptrace.estimate import Gpu, estimate_prediction
from steptrace.files import read_versioned


def estimates(variant_dir: Path, gpus: Sequence[Gpu]) -> tuple[Estimate, ...]:
    """The estimate for each GPU; empty where the step was not followed, of which the syncs of the variant say more."""
    if not gpus or not (variant_dir / PREDICTION_FILE).is_file():
        return ()
    try:
        prediction = read_versioned(variant_dir / PREDICTION_FILE)
    except RecordError:
        return ()
    if not prediction.get("operator_calls"):
        return ()
    return tuple(estimate_prediction(prediction, gpu) for gpu in gpus)
