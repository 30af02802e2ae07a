"""The documents that one layer writes and another reads. Each key's type, unit and meaning is declared here, once.

`summary` is summary.json, with a module for each subject; `finding` a finding in it and in comparison.json;
`comparison` is comparison.json, compare.json and verdict.json, `variant` one variant in the first; `diff` is diff.json,
`run` study.json and a run's files. Producers return these structs, consumers take them. `base` declares, reads and
writes them, `table` makes frames of their rows, `rows` matches rows by their keys. What was not measured is None,
never 0.
"""
