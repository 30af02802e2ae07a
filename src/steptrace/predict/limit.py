"""The errors for features that work on CUDA and that a prediction cannot follow, and for what CUDA itself refuses."""


class CannotFollowError(NotImplementedError):
    """Raised into the program; its message is addressed to a person. Made by `cannot_follow`."""


def cannot_follow(what: str, instead: str) -> CannotFollowError:
    """The error to raise where a program uses something that predictions do not cover.

    Args:
        what: what the program uses.
        instead: what a person can do about it.
    """
    return CannotFollowError(f"steptrace predict cannot follow {what}, which CUDA can: {instead}")


class WaitInCaptureError(RuntimeError):
    """CUDA's own error where the host would wait while a CUDA graph is captured."""

    def __init__(self, op: str, reason: str) -> None:
        super().__init__(
            f"CUDA error: operation not permitted when stream is capturing. The host would wait in {op} ({reason}), "
            "which is an error on CUDA, too, while a CUDA graph is captured"
        )
