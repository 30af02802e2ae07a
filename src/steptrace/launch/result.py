"""How a started program ended: writes the files of a run, or says why there are none. Imports no torch."""

import signal
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from steptrace import format as fmt
from steptrace.config.programs import missing_script, started_by
from steptrace.documents.events import (
    Event,
    FailedOnVirtualGpu,
    Fault,
    GpuMissing,
    ModuleMissing,
    ProbeFailed,
    Started,
    Stepped,
    TorchMissing,
)
from steptrace.documents.note import Note, note
from steptrace.documents.prediction import PredictedStep, predicted_step
from steptrace.documents.probe import MeasuredStep, RankRecord
from steptrace.documents.run import RunRecord
from steptrace.engine.files import write_files
from steptrace.errors import LaunchError
from steptrace.launch.settings import INJECT
from steptrace.processes import in_words

#: The fewest timed steps by which a program that ended early counts as measured.
_LEAST: Final = 2
_ADVICE: Final = (
    "steps are counted by calls of torch.optim optimizers: if the program updates its weights in another way, "
    "call steptrace.step() at the end of each step"
)
_ITS_OUTPUT: Final = "see the program's own output"
_UNSURE: Final = (
    "; if the program runs on a GPU, the prediction is at fault: please report it. A run on a CPU does not show this, "
    "since it may take another path"
)
_MORE_GPUS: Final = "; `steptrace predict --devices N` offers N GPUs to a program that starts its ranks itself"

_Kind = TypeVar("_Kind", bound=Event)


#: Why a program was stopped: its time limit was over, it ran on after its measurement, or this process got a signal.
StopReason = Literal["time_limit", "measured", "signal"]


@dataclass(frozen=True)
class Stop:
    """The end of a program that the launcher stopped.

    Attributes:
        reason: why it was stopped.
        seconds: for `measured`, how long it ran on after its last measured step.
        signal: for `signal`, the number of the signal.
    """

    reason: StopReason
    seconds: float | None = None
    signal: int | None = None


@dataclass(frozen=True)
class Launched:
    """How a program ended, and what its processes left.

    Attributes:
        exit_code: the program's exit code; negative if a signal ended it.
        stopped: why the launcher stopped it; None if it ended by itself.
        ranks: the probe's records, one a rank, in order.
        out: the folder with the ranks' files.
        events: the events that its processes reported, in order.
        predicted: whether it was followed on a virtual GPU.
    """

    exit_code: int
    stopped: Stop | None
    ranks: tuple[RankRecord, ...]
    out: Path
    events: tuple[Event, ...] = ()
    predicted: bool = False

    def events_of(self, kind: type[_Kind]) -> list[_Kind]:
        """Its events of one kind, in order."""
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def stepped(self) -> bool:
        """Whether any of its processes has made a step."""
        return bool(self.events_of(Stepped))

    @property
    def complete(self) -> bool:
        """Whether every rank has finished its measurement."""
        return bool(self.ranks) and all(rank.state == "complete" for rank in self.ranks)

    @property
    def interrupted(self) -> bool:
        """Whether the launcher stopped it since a signal asked for that, such as Ctrl-C."""
        return self.stopped is not None and self.stopped.reason == "signal"

    @property
    def failed(self) -> bool:
        """Whether it ended with an error, before the measurement was complete."""
        return not self.complete and self.exit_code != 0


def require_steps(launched: Launched, command: Sequence[str] = ()) -> None:
    """Raise an error if the program made no training step.

    Raises:
        LaunchError: the probe was not loaded, or failed, or saw no step.
        KeyboardInterrupt: Ctrl-C ended it before it made one.
    """
    failed = next((rank.error for rank in launched.ranks if rank.state == "failed"), None)
    if failed is None and launched.ranks:
        return
    if failed is None and launched.interrupted:  # no advice: it ended as it was asked to
        if launched.stopped == Stop("signal", signal=signal.SIGINT):
            raise KeyboardInterrupt
        raise LaunchError("no step was timed before that", where=ended(launched))
    failures = launched.events_of(ProbeFailed)
    if failed is None and failures:
        failed = failures[0].error
    if failed is not None:
        raise LaunchError(f"steptrace failed in the program: {failed.strip()}", where=ended(launched))
    if not launched.events_of(Started):
        raise LaunchError(
            "steptrace was not loaded into the program",
            where=ended(launched),
            expected="a Python that reads PYTHONPATH, on this machine",
            next_step="check whether the command starts Python with -I, -E or -S, or runs in a container or on another "
            f"machine; a command that sets PYTHONPATH must put {INJECT} first",
        )
    if launched.stepped:
        if launched.stopped is not None:
            done = "followed" if launched.predicted else "timed"
            raise LaunchError(
                f"{_stop_in_words(launched.stopped)}, before a step was {done}",
                where="the program was stopped",
                next_step="fewer --warmup steps, or more time",
            )
        raise LaunchError(
            "its process made a step and left no record: it ended by a signal or os._exit, or could not write",
            where=ended(launched),
            expected=f"a program that ends by itself, and space in {launched.out.parent}",
            next_step="see the program's own output, or try fewer --warmup and --steps",
        )
    # Only of a program that failed: a launcher may start it elsewhere, in another folder or a container.
    missing = missing_script(started_by(command), Path.cwd()) if command and launched.failed else None
    if missing is not None:
        problem, likely = missing
        raise LaunchError(problem, where=ended(launched), next_step=likely or "correct the path, or the folder")
    without = launched.events_of(TorchMissing)
    # A launcher in another environment may have no PyTorch either, while the program that it starts has it.
    no_torch = bool(without) and len(without) == len(launched.events_of(Started))
    next_step = _without_module(without[0].python, "torch") if no_torch else _ADVICE
    if not no_torch and launched.failed and launched.stopped is None:
        next_step = why(launched) + (_MORE_GPUS if launched.events_of(GpuMissing) else "")
    raise LaunchError("no training step was seen", where=ended(launched), next_step=next_step)


def why(launched: Launched) -> str:
    """The advice on a failed program: where to look for the cause, or what to report if it is a bug of steptrace."""
    if (report := fault(launched)) is not None:
        return report
    if missing := launched.events_of(ModuleMissing):
        return _without_module(missing[0].python, missing[0].module)
    may_be_ours = launched.predicted and bool(launched.events_of(FailedOnVirtualGpu))
    return _ITS_OUTPUT + (_UNSURE if may_be_ours else "")


def _without_module(python: str, module: str) -> str:
    """What to do about an interpreter without a module."""
    advice = "start the program with the interpreter of its own environment, such as .venv/bin/python"
    return f"{python} has no module '{module}': install it there, or {advice}"


def fault(launched: Launched) -> str | None:
    """The report on the bug or limit of steptrace by which the program failed; None if there was none."""
    faults = launched.events_of(Fault)
    return faults[0].report if faults else None


def ended(launched: Launched) -> str:
    """How the program ended, as a clause for messages."""
    if launched.stopped is not None:
        return f"the program was stopped: {_stop_in_words(launched.stopped)}"
    return f"the program ended with {in_words(launched.exit_code)}"


def _stop_in_words(stop: Stop) -> str:
    if stop.reason == "signal":
        return f"signal {stop.signal}"
    if stop.seconds is not None:
        return f"it went on for {fmt.plain(stop.seconds)} s after its last step was measured"
    return "its time limit was reached"


#: The labels in the record of a program that belongs to no study.
_OF_NO_STUDY: Final = {"study": "run", "variant": "program", "repeat": 0, "seed": 0, "digest": "", "scale": "auto"}


def write_results(launched: Launched, run_dir: Path, program: dict[str, Any], **labels: Any) -> RunRecord:
    """Write run.json, steps.parquet, traces, memory.json and the operators' lines into `run_dir`; return the record.

    Args:
        launched: a program that made steps (`require_steps`).
        run_dir: the run's folder.
        program: the program, for the key `program` of the record's config.
        labels: study, variant, repeat, seed, digest and scale of the record.

    Raises:
        LaunchError: fewer than two of its steps were timed.
    """
    ranks = launched.ranks
    if min(len(timed(rank)) for rank in ranks) < _LEAST:
        seen = fmt.plural(min(rank.steps_seen for rank in ranks), "step")
        raise LaunchError(
            f"{ended(launched)} after {seen}, before two were timed",
            where=" ".join(program["command"]),
            expected="a program that trains for more steps than the warm-up takes",
            next_step=why(launched) if launched.failed else f"a smaller --warmup; {_ADVICE}",
        )
    batch = _batch(ranks[0])
    labels = _OF_NO_STUDY | labels | {"config": {"program": program, **batch}, "notes": _notes(launched)}
    return write_files(ranks, launched.out, run_dir, labels, batch_size=batch.get("data", {}).get("batch_size"))


def prediction_of(launched: Launched, command: str) -> PredictedStep:
    """The prediction of a followed program.

    Raises:
        LaunchError: no step was followed to its end.
    """
    followed = [rank.prediction for rank in launched.ranks if rank.prediction is not None]
    if not followed or not followed[0].by_step:
        too_few = "fewer --warmup and --steps, or a program that trains for more steps"
        raise LaunchError(
            f"no step was followed to its end on the virtual device: {ended(launched)}",
            where=command,
            next_step=why(launched) if launched.failed else too_few,
        )
    return predicted_step(followed)


def timed(rank: RankRecord) -> list[MeasuredStep]:
    """A rank's timed steps."""
    return [row for row in rank.rows if row.phase == "timed"]


def _batch(rank: RankRecord) -> dict[str, Any]:
    """The samples of a batch and the batches of a step, by the most frequent timed step; without figures that vary."""
    rows = timed(rank)
    batches = statistics.mode(row.batches for row in rows)
    samples = statistics.mode(row.samples for row in rows if row.batches == batches)
    batch: dict[str, Any] = {"step": {"accumulate": batches or statistics.mode(row.backwards for row in rows) or 1}}
    if batches and samples and samples % batches == 0:
        batch["data"] = {"batch_size": samples // batches}
    return batch


def _notes(launched: Launched) -> tuple[Note, ...]:
    """The notes on steps that were skipped and on a program that ended early."""
    rows = timed(launched.ranks[0])
    notes = list[Note]()
    if skipped := sum(row.skipped for row in rows):
        notes.append(note("steps_skipped", steps=skipped))
    if not launched.complete:
        notes.append(note("ended_early", steps=len(rows), exit_code=launched.exit_code))
    return tuple(notes)
