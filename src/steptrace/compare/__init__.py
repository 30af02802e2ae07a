"""A study's variants side by side: from the runs' files to `comparison.json`; gates, and several results of a study.

load.py reads a study's folder, timing.py compares step times, explain.py sums up what traces, equivalence checks,
predictions, memory records and waits for data say, and study.py puts the comparison together. gates.py judges it,
results.py compares kept ones.
"""
