"""How the optimizer updates the parameters."""
