"""Host synchronisations: their cost, their line, and a step without them."""
