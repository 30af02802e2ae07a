"""A study's variants side by side: from the runs' files to `comparison.json`.

load.py reads a study's folder, timing.py compares step times, explain.py sums up what traces, equivalence checks and
predictions say, window.py and memory.py what the profiled windows do, against_baseline.py says what a variant changes,
and study.py puts the comparison together.
"""
