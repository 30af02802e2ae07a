"""Settings of the probe, and the names of the files that it leaves for the launcher. Standard library only."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

#: On the path of the program's processes, for its `sitecustomize.py`.
INJECT: Final = Path(__file__).with_name("inject")
#: The environment variable that holds the settings, as JSON.
VARIABLE: Final = "STEPTRACE_LAUNCH"
#: Once this file exists, newly started processes are left alone.
OVER: Final = "over"
#: The file with the program's progress: `warm-up 10/10, timed 12/30`.
PROGRESS: Final = "progress"
#: The file that says what made a program fail where it is not the program: a bug in steptrace, or a limit of it.
FAULT: Final = "fault"

#: The file that says that a prediction may have made the program fail.
MAY_BE_OURS: Final = "may_be_ours"

#: Steps of a program that are followed for a prediction, and for one that a budget or a gate rests on.
PREDICTED_STEPS: Final = 4
JUDGED_STEPS: Final = 24
#: More are followed where the program branches on a step counter: whole periods, if they are not longer than this.
PERIOD_FOLLOWED: Final = 24
PERIOD_JUDGED: Final = 120

Mode = Literal["measure", "predict", "outputs", "capture"]


@dataclass(frozen=True)
class LaunchSettings:
    """What the probe does: `steps` after `warmup` others, and in mode `measure` `profile` more under the profiler.

    Warm-up and timed steps each end after `at_most_s` seconds, if it is given, with at least five timed steps. `out` is
    the folder that the probe writes into, `captures` in mode `capture` that of the traces asked for, `gpus` in mode
    `predict` how many the virtual machine has; None: as many as a launcher starts ranks, else one. In that mode
    `longest_period` lets more than `steps` steps be followed: whole periods of the program's branches on a step
    counter, where a period is not longer than so many steps. `driver` is what the virtual GPU says of itself, the
    fields of `steptrace.estimate.driver.DriverFacts`; None: those of the usual one.
    After `limit_s` seconds the launcher interrupts the program, as Ctrl-C does; None: never.
    """

    out: str
    mode: Mode = "measure"
    warmup: int = 10
    steps: int = 30
    profile: int = 3
    at_most_s: float | None = None
    captures: str = "captures"
    gpus: int | None = None
    limit_s: float | None = None
    longest_period: int = 1
    driver: dict[str, Any] | None = None
