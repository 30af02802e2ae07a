"""The studies' models, losses and data."""
