"""Which syncs one training step would make on a CUDA device, predicted without one.

from steptrace.predict import predict_syncs

with predict_syncs() as syncs:
    step()
print(syncs.total, syncs.sites, syncs.unknown)

Needs PyTorch and the standard library only, but for `steptrace.predict.main`, which needs Hydra.
"""

from steptrace.predict.recorder import Prediction, Site, Syncs, Unknown
from steptrace.predict.reroute import predict_syncs
from steptrace.predict.rule import Rule

__all__ = ["Prediction", "Rule", "Site", "Syncs", "Unknown", "predict_syncs"]
