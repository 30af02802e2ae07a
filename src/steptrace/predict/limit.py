"""The error for a program that uses a feature that works on CUDA and that a prediction cannot follow."""


class CannotFollowError(NotImplementedError):
    """Raised into the program; its message is addressed to a person. Made by `cannot_follow`."""


def cannot_follow(what: str, instead: str) -> CannotFollowError:
    """The error to raise where a program uses something that predictions do not cover.

    Args:
        what: what the program uses.
        instead: what a person can do about it.
    """
    return CannotFollowError(f"steptrace predict cannot follow {what}, which CUDA can: {instead}")
