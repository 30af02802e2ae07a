"""Inside the program: records the steps that `steptrace capture PID` asks for, and else counts them.

A program with a `Capture` of its own keeps that one: none is made where there is one after the first step, and a later
one takes the earlier one's place.
"""

from steptrace.capture import Capture
from steptrace.capture.job import is_capturable
from steptrace.launch.probe import Phases, Probe


def listen(probe: Probe) -> Phases:
    """Until the program ends; while a capture is under way, the parts of a step are labelled."""
    yield
    while is_capturable():
        yield
    # Not before the first step: only processes that train can be captured, and only now the rank is known.
    with Capture(probe.settings.captures) as capture:
        while True:
            capture.step()
            probe.hooks.labels = capture.recording
            yield
