"""What a program can add to its own measurement. Needs the standard library only.

The probe finds a program's steps by PyTorch's calls. A program can know more than that: where its first step begins,
what a step is made of, and passes of its own between the phases. Such a program joins the session of its process:

    session = steptrace.engine.session.current
    if session is not None:
        session.join(between=passes)
    while session is None or not session.is_over:
        ...

`current` is None in a program that is not measured.
"""

from collections.abc import Callable, Generator
from typing import Any

from steptrace.engine.steps import Step

#: Resumed at the end of each step, with the step. Closed if the program ends early.
Phases = Generator[None, Step, None]


class Session:
    """The measurement of this process, for the program that is measured.

    Attributes:
        explains: whether steps are profiled and watched after the timed ones.
        joined: whether the program has joined.
        is_over: whether the measurement is complete, so that the program can end.
        record: what the program adds to the record of its rank, by the names of `RankRecord`.
        that_fit: called with the number of steps that a pass plans, returns how many fit into its time. All ranks must
            call it together.
        error: the error of the program's own pass that has ended the measurement.

    Args:
        explains: see above.
        begin: called when the program joins, which is when its first step begins.
        step_ended: called at the end of each step.
        step_failed: called with the error of a step; raises it again unless the measurement can go on.
    """

    def __init__(
        self,
        *,
        explains: bool,
        begin: Callable[[], None],
        step_ended: Callable[[Step], None],
        step_failed: Callable[[Exception], None],
    ) -> None:
        self.explains = explains
        self.joined = False
        self.is_over = False
        self.record: dict[str, Any] = {}
        self.that_fit: Callable[[int], int] = lambda planned: planned
        self.error: Exception | None = None
        self._begin = begin
        self._step_ended = step_ended
        self._step_failed = step_failed
        self._between: Callable[[str], None] = lambda _: None

    def join(self, between: Callable[[str], None]) -> None:
        """Take part in the measurement; the program's first step begins now.

        From now on the program itself says where a step ends and which parts it has (`step`), and labels the parts of
        its steps. PyTorch's calls are no longer looked at.

        Args:
            between: called with the name of each phase that is over: `warmup`, `timed`, and at the end `all`. It may
                train on, and add to `record`. Its errors are the program's, and end the measurement.
        """
        self.joined = True
        self._between = between
        self._begin()

    def step(self, step: Step) -> None:
        """Say that a step has ended."""
        self._step_ended(step)

    def failed(self, error: Exception) -> None:
        """Say that a step has raised. Watched steps may fail; the error of any other step is raised again."""
        self._step_failed(error)

    def phase_ended(self, phase: str) -> None:
        """Have the program run its passes; for the probe."""
        try:
            self._between(phase)
        except Exception as error:
            self.error = error
            raise


#: The session of this process; None where the program is not measured.
current: Session | None = None
