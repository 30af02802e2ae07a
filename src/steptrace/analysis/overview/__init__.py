"""The first look at a trace: steps, their parts, what takes the time."""
