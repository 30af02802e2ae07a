"""The page of a trace: one module and template a topic."""
