"""A trace of the next few steps of a training that is already running: see `Capture`, and docs/programs.md.

Importing this package and making a `Capture` do not import torch; recording does.
"""

from steptrace.capture.job import Capture
from steptrace.recording import Settings

__all__ = ["Capture", "Settings"]
