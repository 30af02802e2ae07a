"""Inside the program: puts the probe into this process. `inject/sitecustomize.py` calls it once PyTorch is imported.

It is a module of its own, so that the digest of a run's code does not include what other modes import.
"""

from typing import Any

from steptrace.launch.probe import Probe
from steptrace.launch.settings import LaunchSettings


def install(settings: dict[str, Any]) -> None:
    """Put the probe into this process, as `sitecustomize` does once PyTorch is imported."""
    chosen = LaunchSettings(**settings)
    if chosen.mode == "predict":  # the only mode that needs the virtual device
        from steptrace.launch.predict import predict as phases
    else:
        from steptrace.launch import modes

        phases = {"measure": modes.measure, "capture": modes.capture, "outputs": modes.record_outputs}[chosen.mode]
    Probe(chosen, phases).install()
