"""Thresholds that several rules share, each with its source."""

from typing import Final

from steptrace.findings.rule import Threshold
from steptrace.limits import HIGH_SHARE, MODERATE_SHARE, NOISE_FLOOR, OVERHEAD_HIGH, OVERHEAD_MODERATE

#: The least part of a step that is worth a finding.
NOISE: Final = Threshold(NOISE_FLOOR, "ours, the default noise floor")
#: From this part of a step on a finding is severe.
SEVERE: Final = Threshold(MODERATE_SHARE, "ours")
#: For waiting for data, and for copies.
DATA_MODERATE: Final = Threshold(MODERATE_SHARE, "the TensorFlow Profiler calls it moderate")
DATA_HIGH: Final = Threshold(HIGH_SHARE, "the TensorFlow Profiler calls it high")
#: For launches, and for collectives.
MODERATE: Final = Threshold(OVERHEAD_MODERATE, "the TensorFlow Profiler calls it moderate")
HIGH: Final = Threshold(OVERHEAD_HIGH, "the TensorFlow Profiler calls it high")
