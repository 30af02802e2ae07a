"""Which syncs one training step would make on a CUDA device, found without one.

from steptrace.predict import predict_syncs

with predict_syncs() as syncs:
    step()
print(syncs.total, syncs.sites, syncs.unknown)
"""

from steptrace.predict.core import predict_syncs
from steptrace.predict.drive import predict_callable, predict_config
from steptrace.predict.rule import Rule
from steptrace.predict.sites import Prediction, Site, Syncs, Unknown

__all__ = ["Prediction", "Rule", "Site", "Syncs", "Unknown", "predict_callable", "predict_config", "predict_syncs"]
