"""Training runs: the plain loop, the profiled window, the supervisor."""
