"""One question, one module: each takes a trace and answers with a table."""
