"""Trace against trace: rows of two summaries joined by their keys, renamed kernels matched.

Figures only: a summary holds no spread over runs, so nothing is called slower or faster here. Claims about speed come
from unprofiled steps, in `steptrace compare`.
"""

from steptrace.diff.compare import Side, diff, read_sides
