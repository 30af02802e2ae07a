"""Which syncs one training step would make on a CUDA device, predicted without one.

from steptrace.predict import predict_syncs

with predict_syncs() as syncs:
    step()
print(syncs.total, syncs.sites, syncs.unknown)

Needs PyTorch and the standard library only; `predict_config` needs Hydra.
"""

from typing import TYPE_CHECKING

from steptrace.predict.prediction import Prediction
from steptrace.predict.recorder import Site, Syncs, Unknown
from steptrace.predict.reroute import predict_syncs
from steptrace.predict.rule import Rule

if TYPE_CHECKING:
    from steptrace.predict.drive import predict_config

__all__ = ["Prediction", "Rule", "Site", "Syncs", "Unknown", "predict_config", "predict_syncs"]


def __getattr__(name: str) -> object:
    """What drives a config, once it is asked for."""
    if name == "predict_config":
        from steptrace.predict.drive import predict_config

        return predict_config
    raise AttributeError(f"module 'steptrace.predict' has no attribute {name!r}")
