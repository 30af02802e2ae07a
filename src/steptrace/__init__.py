"""steptrace: a reproducible lab for training-step performance."""

__version__ = "0.1.0"
