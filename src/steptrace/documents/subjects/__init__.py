"""The subjects of a trace that are one table each, a module for each: its row type, and its entry `SUBJECT`.

`documents.subject` finds the modules that are here, so nothing lists them. `TraceSummary` gets a field for each, and
with it summary.json, the schema, the pages, `steptrace diff` and gates. `analysis` computes them.
"""
