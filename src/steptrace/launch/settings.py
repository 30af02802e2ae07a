"""The settings of the probe, and the names of files that it shares with the launcher. Standard library only."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

#: The folder of the `sitecustomize.py` that the program's processes import.
INJECT: Final = Path(__file__).with_name("inject")
#: The environment variable that holds the settings, as JSON.
VARIABLE: Final = "STEPTRACE_LAUNCH"
#: The file to which the program's processes, and the launcher at the end of the measurement, append events, one in each
#: line (`steptrace.launch.events`).
EVENTS: Final = "events.jsonl"

#: Files of memory snapshots, by rank: one at the end of the steps, one when an allocation failed.
SNAPSHOT: Final = "rank{rank}.pickle"
SNAPSHOT_OUT_OF_MEMORY: Final = "rank{rank}-out-of-memory.pickle"

#: How many steps of a program a prediction follows.
PREDICTED_STEPS: Final = 4
#: How many it follows if a budget or a gate depends on them.
JUDGED_STEPS: Final = 24
#: If the program branches on a step counter, whole periods of the branch are followed. This is the longest period.
PERIOD_FOLLOWED: Final = 24

Mode = Literal["measure", "predict", "outputs", "capture"]


@dataclass(frozen=True)
class LaunchSettings:
    """The settings of the probe.

    Attributes:
        out: the folder that the probe writes into.
        mode: whether the steps are measured, predicted, or recorded on request.
        warmup: steps before those that are measured, followed or compared.
        steps: steps that are measured, followed or compared.
        profile: in mode `measure`, steps after them that the profiler records; 0: none.
        profile_warmup: steps under the profiler before those that it records.
        stacks: whether the profiler records Python stacks.
        shapes: whether it records the shapes of operators' inputs.
        memory: whether it records allocations.
        at_most_s: seconds after which the warm-up ends, and again the timed steps if five are timed; None: no limit.
        captures: in mode `capture`, the folder of the traces.
        gpus: in mode `predict`, how many GPUs the virtual machine has; None: as many as the program starts ranks.
        limit_s: seconds after which the launcher interrupts the program, as Ctrl-C does; None: no limit.
        longest_period: in mode `predict`, if the program branches on a step counter, more than `steps` steps are
            followed: whole periods of the branch, unless a period has more steps than this.
        driver: in mode `predict`, the properties of the virtual GPU, as fields of
            `steptrace.estimate.driver.DriverFacts`; None: those of the default GPU.
        memory_snapshot: in mode `measure`, whether the history of GPU memory is recorded, and snapshots are written
            into `out`.
        follows_compiled: in mode `predict`, whether to find the kernels and graph breaks of the code that the program
            compiles, even if no estimate needs them.
        compiles: in mode `predict`, whether to find which kernels the program's modules would have if they were
            compiled.
    """

    out: str
    mode: Mode = "measure"
    warmup: int = 10
    steps: int = 30
    profile: int = 3
    profile_warmup: int = 2
    stacks: bool = True
    shapes: bool = True
    memory: bool = True
    at_most_s: float | None = None
    captures: str = "captures"
    gpus: int | None = None
    limit_s: float | None = None
    longest_period: int = 1
    driver: dict[str, Any] | None = None
    memory_snapshot: bool = False
    follows_compiled: bool = False
    compiles: bool = False
