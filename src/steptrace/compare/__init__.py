"""A study's variants side by side: from the runs' files to `comparison.json`; gates, and several results of a study.

load.py reads a study's folder, timing.py compares step times, explain.py sums up what traces, equivalence checks,
predictions and memory records say, input.py how long data is waited for, against_baseline.py what a variant changes,
and study.py puts the comparison together. gates.py and judge.py judge it, results.py compares kept ones.
"""
