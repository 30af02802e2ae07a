"""The documents that one floor writes and another reads: every key with its type, unit and meaning, declared once.

`summary` is summary.json, `comparison` comparison.json, `finding` a finding in either of them, `verdict` verdict.json,
`kept` a stored baseline and history.json. Producers return these structs, consumers take them; `base` reads and writes
them, and makes their JSON Schemas (docs/schemas/). What was not measured is None, never 0.
"""
