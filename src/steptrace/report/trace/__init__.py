"""The page of a trace: a section a subject, in the order of `TraceSummary`."""
