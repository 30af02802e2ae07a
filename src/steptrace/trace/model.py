"""A trace as tables: the linker's result, and the input of every metric."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, NamedTuple, ParamSpec, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from steptrace import intervals
from steptrace.documents.note import Note
from steptrace.documents.quality import OptimizerSteps, StepSource
from steptrace.documents.table import check_references, validate
from steptrace.intervals import Ints
from steptrace.trace.columns import row_numbers, spans_of, take
from steptrace.trace.records import WHOLE, Records
from steptrace.trace.rows import TABLES

if TYPE_CHECKING:
    from steptrace.documents.run import RunMemory
    from steptrace.trace.source_lines import SourceLines

Rest = ParamSpec("Rest")
Result = TypeVar("Result")


@dataclass(frozen=True)
class TraceMeta:
    """A trace's metadata; missing values are None.

    `base_ns` is the absolute time (Unix epoch) of the tables' time 0, if the trace gives one; `file_base_ns` is the
    same on the file's own clock. `notes` say what the reader left out, `records` which records of the GPU
    are missing. `runtimes` are those of the calls, and `steps_from` says which labels mark the steps,
    `optimizer_steps` how steps of optimizers make them.
    """

    path: Path
    base_ns: int | None
    world_size: int | None
    devices: tuple[dict[str, Any], ...]
    notes: tuple[Note, ...] = ()
    file_base_ns: int = 0
    records: Records = WHOLE
    runtimes: frozenset[str] = frozenset()
    steps_from: StepSource | None = None
    optimizer_steps: OptimizerSteps | None = None

    def device_name(self, device: int | None) -> str | None:
        """The name of a GPU by its index, if the trace gives one."""
        return next((str(d["name"]) for d in self.devices if d.get("id") == device and d.get("name")), None)

    def compute_major(self, device: int | None) -> int | None:
        """The major number of an NVIDIA GPU's compute capability; None if it is missing, or for AMD's GPUs.

        AMD's driver fills the field with another number; its GPUs have a warp size of 64, NVIDIA's of 32.
        """
        properties = next((d for d in self.devices if d.get("id") == device and d.get("warpSize") in (None, 32)), {})
        major = properties.get("computeMajor")
        return major if isinstance(major, int) and major > 0 else None

    def multiprocessors(self, device: int) -> int | None:
        """The number of multiprocessors (SMs, compute units) of a GPU, if the trace gives it."""
        count = next((d.get("numSms") for d in self.devices if d.get("id") == device), None)
        return count if isinstance(count, int) and count > 0 else None


@dataclass(frozen=True)
class Trace:
    """One rank's trace as tables, declared in `steptrace.trace.rows`; times are ns since the trace's first event.

    `kernels` holds every GPU activity, copies and sets included. `window` is the span of all events used. `lines` and
    `memory_record` are what a run recorded beside its trace (`trace.source.with_records`).
    """

    rank: int | None
    window: tuple[int, int]
    meta: TraceMeta
    threads: pd.DataFrame
    steps: pd.DataFrame
    ops: pd.DataFrame
    launches: pd.DataFrame
    kernels: pd.DataFrame
    collectives: pd.DataFrame
    syncs: pd.DataFrame
    frames: pd.DataFrame
    labels: pd.DataFrame
    memory: pd.DataFrame
    lines: "SourceLines | None" = None
    memory_record: "RunMemory | None" = None
    #: Belongs to the link between the ranks; known only if the user named it.
    bus_bytes_per_s: float | None = None
    #: The cache of `once`; a copy starts with an empty one.
    derived: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def path(self) -> Path:
        """The trace's file."""
        return self.meta.path

    @property
    def devices(self) -> list[int]:
        """The GPUs with activities, the one with the most busy time first; none if too many records are missing."""
        return _devices(self) if self.meta.records.whole else []

    @property
    def device(self) -> int | None:
        """The analysed GPU: the one with the most busy time; None without GPU work, or if too much of it is missing."""
        return self.devices[0] if self.devices else None

    @property
    def steps_span(self) -> tuple[int, int]:
        """From the first step's start to the end of the last one's work; without steps the whole trace."""
        if len(self.steps) == 0:
            return self.window
        return int(self.steps["ts"].iloc[0]), int((self.steps["ts"] + self.steps["dur"]).max())


def once(compute: Callable[Concatenate[Trace, Rest], Result]) -> Callable[Concatenate[Trace, Rest], Result]:
    """Cache a function of a trace, by its arguments.

    For functions with hashable arguments whose results are never changed; a trace's tables do not change either.
    """

    @functools.wraps(compute)
    def remembered(trace: Trace, /, *args: Rest.args, **kwargs: Rest.kwargs) -> Result:
        key = (f"{compute.__module__}.{compute.__qualname__}", args, tuple(kwargs.items()))
        if key not in trace.derived:
            trace.derived[key] = compute(trace, *args, **kwargs)
        result: Result = trace.derived[key]
        return result

    return remembered


def forget(trace: Trace, compute: Callable[..., Any]) -> None:
    """Remove the results that `once` has cached of a function."""
    name = f"{compute.__module__}.{compute.__qualname__}"
    for key in [key for key in trace.derived if key[0] == name]:
        del trace.derived[key]


def carry(trace: Trace, copy: Trace, *computed: Callable[..., Any]) -> Trace:
    """The `copy` with the results that `once` has cached of some functions of `trace`.

    The copy may lack the tables to compute them itself.
    """
    names = {f"{compute.__module__}.{compute.__qualname__}" for compute in computed}
    copy.derived.update({key: value for key, value in trace.derived.items() if key[0] in names})
    return copy


@once
def _devices(trace: Trace) -> list[int]:
    devices = trace.kernels["device"].to_numpy()
    busy = {
        device: intervals.measure(intervals.union(spans_of(trace.kernels[devices == device])))
        for device in set(devices)
    }
    return sorted((int(device) for device in busy), key=lambda device: (-busy[device], device))


def on_training(trace: Trace, rows: pd.DataFrame) -> NDArray[np.bool_]:
    """A mask of the rows of a table of host events on training threads."""
    training: NDArray[np.bool_] = trace.threads["training"].to_numpy(dtype=bool)
    return training[rows["thread"].to_numpy()] if len(training) else np.zeros(len(rows), dtype=bool)


def launched_at(trace: Trace) -> Ints:
    """The start of the call that launched each row of `kernels`, -1 without one."""
    return take(trace.launches["ts"].to_numpy(), row_numbers(trace.kernels["launch"]))


def launching_op(trace: Trace) -> Ints:
    """Row of the operator that each row of `kernels` was launched in, -1 without one."""
    return take(row_numbers(trace.launches["op"]), row_numbers(trace.kernels["launch"]))


def median_step(trace: Trace) -> int | None:
    """The row of the step for pictures and excerpts: the median by time.

    Steps without GPU work do not count if others have some. If their number is even, it is the shorter one of the
    middle two. None without steps.
    """
    if len(trace.steps) == 0:
        return None
    rows = working_steps(trace)
    by_time = np.argsort(trace.steps["dur"].to_numpy()[rows], kind="stable")
    return int(rows[by_time[(len(rows) - 1) // 2]])


def working_steps(trace: Trace) -> Ints:
    """The rows of the steps with GPU work; of all steps if none has any."""
    working = np.unique(trace.kernels["step"].dropna().to_numpy(dtype=np.int64))
    return working if len(working) else np.arange(len(trace.steps))


class ShownTime(NamedTuple):
    """The time that pictures show: the number of its step, None without steps; its start and its end."""

    step: int | None
    start: int
    end: int


def shown_time(trace: Trace) -> ShownTime:
    """The median step from its start to the end of its work; the whole trace where it marks no steps."""
    row = median_step(trace)
    if row is None:
        return ShownTime(None, *trace.window)
    step = trace.steps.iloc[row]
    return ShownTime(int(step["index"]), int(step["ts"]), int(step["ts"] + step["dur"]))


def lengths_of_tables(trace: Trace) -> dict[str, int]:
    """How many rows each table of the trace has, by name."""
    return {name: len(getattr(trace, name)) for name in TABLES}


def check(trace: Trace) -> Trace:
    """Return `trace` if every table fits its declaration and names only rows that exist; else raise `SchemaError`."""
    lengths = lengths_of_tables(trace)
    for name, kind in TABLES.items():
        check_references(validate(getattr(trace, name), kind), kind, lengths)
    return trace
