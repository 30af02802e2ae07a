"""The fake training's loss. Nothing makes one; the plan asks whether there is such a class."""

STEPS = 1


class Loss:
    """What the fake study's `_target_` names."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
