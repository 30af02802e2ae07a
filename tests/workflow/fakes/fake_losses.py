"""The fake training's loss."""

STEPS = 1
