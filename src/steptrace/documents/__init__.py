"""The documents that one floor writes and another reads: every key with its type, unit and meaning, declared once.

`summary` is summary.json, `comparison` comparison.json, `finding` a finding in either of them, `verdict` verdict.json,
`compared` compare.json, `diff` diff.json, `run` a run's files, `study` study.json. Producers return these structs,
consumers take them; `base` reads and writes them, `column` declares what tables and pages show of them. What was not
measured is None, never 0.
"""
