"""How a started program ended: its probe's records as the files of a run, or why there are none. Imports no torch."""

import json
import statistics
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from steptrace import format as fmt
from steptrace.documents.note import Note, note
from steptrace.documents.prediction import PredictedStep, predicted_step
from steptrace.documents.probe import MeasuredStep, RankRecord
from steptrace.documents.run import RunRecord
from steptrace.engine.files import write_files
from steptrace.errors import LaunchError
from steptrace.launch.settings import FAULT, INJECT, MAY_BE_OURS
from steptrace.processes import in_words

#: A program that ended early needs this many timed steps to count.
_LEAST: Final = 2
_ADVICE: Final = (
    "steps are counted by calls of torch.optim optimizers: if the program updates its weights in another way, "
    "call steptrace.step() at the end of each step"
)
_ITS_OUTPUT: Final = "see the program's own output"
_ON_CPU: Final = "; if `steptrace run` gets it through on a CPU, the prediction is at fault: please report it"
_MORE_GPUS: Final = "; `steptrace predict --devices N` offers N GPUs to a program that starts its ranks itself"


@dataclass(frozen=True)
class Launched:
    """How a program ended, and the probe's records, one a rank in order. `stopped`: why we stopped it, or None."""

    exit_code: int
    stopped: str | None
    ranks: tuple[RankRecord, ...]
    out: Path
    #: Python processes that had the probe on their path; those that imported PyTorch are among them.
    started: int
    #: Errors in the probe itself.
    failures: tuple[str, ...]
    #: Whether it was followed on a virtual GPU.
    predicted: bool = False

    @property
    def complete(self) -> bool:
        """Whether every rank has finished its measurement."""
        return bool(self.ranks) and all(rank.state == "complete" for rank in self.ranks)

    @property
    def failed(self) -> bool:
        """Whether it ended before that with an error."""
        return not self.complete and self.exit_code != 0


def require_steps(launched: Launched) -> None:
    """Raise an error if the program made no training step.

    Raises:
        LaunchError: the probe was not loaded, or failed, or saw no step.
    """
    failed = next((rank.error for rank in launched.ranks if rank.state == "failed"), None)
    if failed is None and not launched.ranks and launched.failures:
        failed = launched.failures[0]
    if failed is not None:
        raise LaunchError(f"steptrace failed in the program: {failed.strip()}", where=ended(launched))
    if launched.ranks:
        return
    if launched.started == 0:
        raise LaunchError(
            "steptrace was not loaded into the program",
            where=ended(launched),
            expected="a Python that reads PYTHONPATH, on this machine",
            next_step="check whether the command starts Python with -I, -E or -S, or runs in a container or on another "
            f"machine; a command that sets PYTHONPATH must put {INJECT} first",
        )
    if any(launched.out.glob("stepped.*")):
        if launched.stopped is not None:
            where, next_step = "the program was stopped", "fewer --warmup steps, or more time"
            raise LaunchError(f"{launched.stopped}, before a step was timed", where=where, next_step=next_step)
        raise LaunchError(
            "its process made a step and left no record: it ended by a signal or os._exit, or could not write",
            where=ended(launched),
            expected=f"a program that ends by itself, and space in {launched.out.parent}",
            next_step="see the program's own output, or try fewer --warmup and --steps",
        )
    next_step = _ADVICE
    if launched.failed and launched.stopped is None:
        next_step = why(launched) + (_MORE_GPUS if any(launched.out.glob("lacks_gpus.*")) else "")
    raise LaunchError("no training step was seen", where=ended(launched), next_step=next_step)


def why(launched: Launched) -> str:
    """Where to look for the cause of a failure; for a bug in steptrace, what to report."""
    if (report := fault(launched)) is not None:
        return report
    if (lacking := _lacking(launched)) is not None:
        module, python = lacking
        own = "start the program with the interpreter of its own environment, such as .venv/bin/python"
        return f"{python} has no module '{module}': install it there, or {own}"
    may_be_ours = launched.predicted and any(launched.out.glob(f"{MAY_BE_OURS}.*"))
    return _ITS_OUTPUT + (_ON_CPU if may_be_ours else "")


def _lacking(launched: Launched) -> tuple[str, str] | None:
    """The module whose lack has ended the program, and the interpreter that lacks it; None where it was not that."""
    for file in sorted(launched.out.glob("lacks.*")):
        with suppress(OSError, ValueError, KeyError):
            found = json.loads(file.read_text(encoding="utf-8"))
            return str(found["module"]), str(found["python"])
    return None


def fault(launched: Launched) -> str | None:
    """What to report where steptrace has made the program fail; None where it has not."""
    files = sorted(launched.out.glob(f"{FAULT}.*"))
    return files[0].read_text(encoding="utf-8") if files else None


def ended(launched: Launched) -> str:
    """How the program ended, for messages."""
    if launched.stopped:
        return f"the program was stopped: {launched.stopped}"
    return f"the program ended with {in_words(launched.exit_code)}"


#: What the record of a program that belongs to no study says of it.
_OF_NO_STUDY: Final = {"study": "run", "variant": "program", "repeat": 0, "seed": 0, "digest": "", "scale": "auto"}


def write_results(launched: Launched, run_dir: Path, program: dict[str, Any], **labels: Any) -> RunRecord:
    """Write run.json, steps.parquet, traces, memory.json and the operators' lines into `run_dir`.

    Args:
        launched: a program that made steps (`require_steps`).
        run_dir: the run's folder.
        program: the program as the record's config names it.
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
    """Samples in a batch and batches in a step, as in most timed steps; without those that vary."""
    rows = timed(rank)
    batches = statistics.mode(row.batches for row in rows)
    samples = statistics.mode(row.samples for row in rows if row.batches == batches)
    batch: dict[str, Any] = {"step": {"accumulate": batches or statistics.mode(row.backwards for row in rows) or 1}}
    if batches and samples and samples % batches == 0:
        batch["data"] = {"batch_size": samples // batches}
    return batch


def _notes(launched: Launched) -> tuple[Note, ...]:
    """What only a program's own steps can lack."""
    rows, notes = timed(launched.ranks[0]), list[Note]()
    if skipped := sum(row.skipped for row in rows):
        notes.append(note("steps_skipped", steps=skipped))
    if not launched.complete:
        notes.append(note("ended_early", steps=len(rows), exit_code=launched.exit_code))
    return tuple(notes)
