"""The documents that one floor writes and another reads: every key with its type, unit and meaning, declared once.

`summary` is summary.json, which has a module a subject; `finding` a finding in it and in comparison.json; `comparison`
comparison.json, compare.json and verdict.json, with a `variant` each; `diff` diff.json, `run` study.json and a run's
files. Producers return these structs, consumers take them. `base` declares, reads and writes them, `table` makes frames
of their rows, and `rows` joins those. What was not measured is None, never 0.
"""
