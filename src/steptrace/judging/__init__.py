"""Results held against limits, stored baselines and earlier results."""
