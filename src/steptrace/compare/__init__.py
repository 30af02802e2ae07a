"""A study's variants side by side: from the runs' files to `comparison.json`.

load.py reads a study's folder, timing.py compares step times, explain.py sums up what traces, equivalence checks and
predictions say, waterfall.py divides a difference in step time among the step's parts, sync_diff.py says which
synchronisations came and went, whatif.py predicts a variant from its baseline's traces, and study.py puts the
comparison together.
"""

from steptrace.compare.study import compare
