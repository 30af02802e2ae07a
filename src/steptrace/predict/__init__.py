"""Predicts the syncs that a training step would make on a CUDA device, without one.

from steptrace.predict import predict_syncs

with predict_syncs() as syncs:
    step()
print(syncs.total, syncs.sites, syncs.unknown)

Needs PyTorch and the standard library only; `steptrace.predict.main` needs Hydra, too.
"""

from steptrace.extras import named

try:
    from steptrace.predict.counted_places import Site, Unknown
    from steptrace.predict.entry import predict_syncs
    from steptrace.predict.prediction import Prediction
    from steptrace.predict.sync_rule import SyncRule
    from steptrace.predict.syncs import Syncs
except ModuleNotFoundError as error:  # an installation without PyTorch
    raise named(error) from None

__all__ = ["Prediction", "Site", "SyncRule", "Syncs", "Unknown", "predict_syncs"]
