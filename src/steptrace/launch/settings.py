"""What the launcher asks of the probe, and the names of the files by which the probe answers. Standard library only."""

import json
from dataclasses import asdict, dataclass
from typing import Final, Literal

#: The environment variable that holds the settings.
VARIABLE: Final = "STEPTRACE_LAUNCH"
#: Once it is there, processes that start are left alone.
OVER: Final = "over"
#: The mark of a probe that could not write what it has found; the error's number follows, and that of the process.
UNWRITTEN: Final = "unwritten"
#: The file that says how far the program is, as in `warm-up 10/10, timed 12/30`.
PROGRESS: Final = "progress"
#: Of the file that says of a failed prediction that it is our own fault.
FAULT: Final = "fault"

Mode = Literal["measure", "predict", "answer", "capture"]


@dataclass(frozen=True)
class LaunchSettings:
    """What is done in the program: `steps` after `warmup` others, and in mode `measure` `profile` more profiled.

    Warm-up and timed steps each end after `at_most_s` seconds, if it is given and there is one rank, with at least five
    timed steps. `out` is the folder that the probe writes into, `captures` in mode `capture` that of the traces asked
    for, `gpus` in mode `predict` how many the virtual machine has; None: as many as a launcher starts ranks, else one.
    """

    out: str
    mode: Mode = "measure"
    warmup: int = 10
    steps: int = 30
    profile: int = 3
    at_most_s: float | None = None
    captures: str = "captures"
    gpus: int | None = None

    def to_variable(self) -> str:
        """The text of the environment variable."""
        return json.dumps(asdict(self))


def answer_file(rank: int) -> str:
    """The file in which a rank leaves what it has found."""
    return f"rank{rank}.json"
