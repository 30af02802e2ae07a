"""Two traces, two jobs, or two results of `steptrace run` side by side."""

from steptrace.diff.sides import Side, read_sides
from steptrace.diff.traces import KERNEL_LEVELS, LEAST_ALIKE, diff, normalised, pair
