"""The rules of findings, one module each: condition, thresholds with their source, figures, words.

`findings.registry` imports them all by their place here. CONTRIBUTING.md says how to add one.
"""
