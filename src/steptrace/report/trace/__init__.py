"""The page of a trace: its topics are declared in `topics`, each drawn by a template of its name."""
