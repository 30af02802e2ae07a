"""A trace of the next few steps of a training that is already running.

from steptrace.capture import Capture

capture = Capture("captures")
for batch in loader:
    train_step(batch)
    capture.step()

While nothing is asked for, `step` counts and looks at one word of memory. `steptrace capture PID`, or a signal, makes
it record. Importing this package and making a `Capture` do not import torch; recording does.
"""

from steptrace.capture.job import Capture
from steptrace.capture.plan import Settings

__all__ = ["Capture", "Settings"]
