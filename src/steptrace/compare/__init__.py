"""A study's variants side by side: from the runs' files to `comparison.json`; gates, and several results of a study.

load.py reads a study's folder. timing.py compares step times. explain.py summarises traces, equivalence checks,
predictions, memory records and waits for data. study.py makes the comparison of them. gates.py judges it, and
results.py compares several comparisons.
"""
