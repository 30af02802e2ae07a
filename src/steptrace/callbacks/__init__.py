"""Callbacks that log step time and syncs of a real training: `callbacks.lightning` and `callbacks.transformers`.

`steptrace run` measures without any change of a program, and far more. A callback is for what stays in a training: a
curve that shows when somebody adds a sync.
"""

from steptrace.callbacks.step_log import StepLog

__all__ = ["StepLog"]
