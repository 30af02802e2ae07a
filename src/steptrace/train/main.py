"""The program of a study's variant: `python -m steptrace.train CONFIG.yaml [--out RUNDIR] [--repeat K]`.

Without `--out` it trains, and calls `steptrace.step()` after each step, until it is stopped from outside, as by
`steptrace run -- python -m steptrace.train CONFIG.yaml`. With `--out` it is measured by the same engine
(`steptrace.engine.measure`), with a study's extra passes (sections, input and memory) between the timed and the
profiled steps. It writes run.json, steps.parquet, sections.parquet, input.parquet, trace.json.gz, op_lines.parquet,
sources.json, warned_syncs.json and memory.json to RUNDIR. Repeat K uses seed + K.

With `distributed.world_size` above 1 `torchrun` starts it, once per rank. Every rank runs the same steps and writes its
own trace; the other files are rank 0's. Only the step times are those of the slowest rank, step by step: they are
gathered after the last step, when the bandwidth between the ranks is measured, too (communication.json).

A training that raises ends with its traceback and exit code 1; one that cannot start (a `SteptraceError`) with a
message and exit code 2.
"""

import argparse
import faulthandler
import platform
import signal
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

import steptrace
from steptrace.documents.run import RunRecord
from steptrace.engine.files import move_trace, steps_table, trace_name, write_lines
from steptrace.engine.measure import Measurement, MeasureSettings, Phases
from steptrace.engine.recording import Settings
from steptrace.engine.steps import Step
from steptrace.errors import SteptraceError, TrainError
from steptrace.machine import environment
from steptrace.record import write_communication, write_memory, write_run, write_steps
from steptrace.train.bandwidth import communication
from steptrace.train.distributed import DistInfo, barrier, from_every_rank, process_group, ranks_of
from steptrace.train.loop import Training, train_step
from steptrace.train.memory import MemoryWatch, watched_memory
from steptrace.train.passes import StudyPasses
from steptrace.train.setup import device_of, load_config, training

_PROGRESS_PERIOD_S = 5.0


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m steptrace.train", description="Train a variant of a study.")
    parser.add_argument("config", type=Path, help="resolved config of the variant (YAML)")
    parser.add_argument("--out", type=Path, help="measure it, and write the run's files into this folder")
    parser.add_argument("--repeat", type=int, default=0, help="number of the repeat, from 0")
    options = parser.parse_args(arguments)
    faulthandler.register(signal.SIGTERM, file=2, chain=True)  # stopped at its time limit, it says where it was
    try:
        config = load_config(options.config)
        if options.out is None:
            train(config, options.repeat)
        else:
            run(config, options.out, options.repeat)
    except SteptraceError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    return 0


def train(config: DictConfig, repeat: int) -> None:
    """Train until stopped."""
    ranks = ranks_of(config)
    with process_group(config, ranks), training(config, config.seed + repeat, ranks) as parts:
        while True:
            train_step(parts)
            steptrace.step()


def run(config: DictConfig, out: Path, repeat: int) -> RunRecord:
    """Do one run, or one rank's part of it, into folder `out`, and return its record."""
    out.mkdir(parents=True, exist_ok=True)
    ranks = ranks_of(config)
    with process_group(config, ranks):
        return _run(config, out, repeat, ranks)  # a separate call, so that the model is freed before the group


def _run(config: DictConfig, out: Path, repeat: int, ranks: DistInfo) -> RunRecord:
    explained = config.profile.repeats is None or repeat < config.profile.repeats
    with (
        nullcontext(out) if ranks.rank == 0 else TemporaryDirectory() as own,  # the other ranks' files are equal
        TemporaryDirectory(dir=out, prefix=".measured.") as measured,
        watched_memory(config, device_of(config, ranks), out) as memory,  # any rank may run out
        training(config, config.seed + repeat, ranks) as parts,
    ):
        memory.training = parts
        left, passes = measure(parts, config, memory, Path(measured), explained=explained)
        passes.write(Path(own))
        write_memory(Path(own), memory.with_workspaces(passes.memory))
        if explained:
            _keep_trace(left, Path(measured), out, ranks)
            write_lines(Path(measured), Path(own))
        write_steps(Path(own), steps_table(from_every_rank(left["rows"], ranks)))
        if not ranks.alone:
            write_communication(Path(own), communication(parts, config))
        barrier(ranks)  # every trace is written
    record = RunRecord(
        study=config.study,
        variant=config.variant,
        repeat=repeat,
        seed=config.seed + repeat,
        world_size=ranks.world_size,
        digest=config.digest,
        scale=config.scale.name,
        device=config.device,
        clock=left["clock"],
        # The installed package's own version may lack the build, as in 2.11.0+cu130.
        environment=environment(
            left | {"python": platform.python_version(), "torch": str(torch.__version__), "cuda": torch.version.cuda}
        ),
        peak_allocated_bytes=passes.peaks["peak_allocated_bytes"],
        peak_reserved_bytes=passes.peaks["peak_reserved_bytes"],
        nvml=left["nvml"],
        traces=tuple(trace_name(rank) for rank in range(ranks.world_size)) if explained else (),
        config=OmegaConf.to_container(config, resolve=True),  # type: ignore[arg-type]
        warnings=tuple(left["warnings"]),
        batch_bytes=passes.batch_bytes,
    )
    if ranks.rank == 0:
        write_run(out, record)  # last: a folder with run.json is complete
    return record


def measure(
    parts: Training, config: DictConfig, memory: MemoryWatch, folder: Path, *, explained: bool
) -> tuple[dict[str, Any], StudyPasses]:
    """Train through the engine's phases; without `explained` only the timed ones and the memory pass.

    Returns:
        The engine's record (`Measurement.record`; its files are in `folder`), and the passes of the study.
    """
    scale, window = config.scale, config.profile
    passes = StudyPasses(parts, config, memory, explained=explained)
    profiled = Settings(window.active, window.warmup, window.with_stack, window.record_shapes, window.profile_memory)
    settings = MeasureSettings(
        folder,
        scale.warmup_steps,
        scale.timed_steps,
        profiled if explained else None,
        at_most_s=scale.get("at_most_s"),
        ours=True,
    )
    measurement = Measurement(settings, between=passes.between, progress=_Progress(parts.ranks))
    barrier(parts.ranks)  # else the first step would include the wait for a later rank
    _train_through(measurement.phases(), parts, config.data.batch_size)
    return measurement.record, passes


def _train_through(phases: Phases, parts: Training, batch_size: int) -> None:
    """Train until the phases end; they get each step, or the error that it raised."""
    samples = parts.accumulate * batch_size
    next(phases)
    try:
        while True:
            try:
                loss, wait_ns = train_step(parts)
            except Exception as error:  # in a watched step they go on; other phases raise it again
                phases.throw(error)
                continue
            phases.send(Step(parts.accumulate, parts.accumulate, samples, wait_ns, losses=[loss]))
    except StopIteration:
        pass
    finally:
        phases.close()


def _keep_trace(left: dict[str, Any], folder: Path, out: Path, ranks: DistInfo) -> None:
    """Move the trace into the run's folder; raise without one."""
    trace = left["trace"]
    if trace["state"] != "recorded" or move_trace(folder / trace["file"], out, ranks.rank) is None:
        raise TrainError(f"no trace of the profiled steps: {trace['message']}", where=out)


class _Progress:
    """Prints a phase's progress, on rank 0: at its end, and every few seconds."""

    def __init__(self, ranks: DistInfo) -> None:
        self._silent, self._printed = ranks.rank > 0, time.monotonic()

    def __call__(self, phase: str, done: int, total: int) -> None:
        late = time.monotonic() - self._printed >= _PROGRESS_PERIOD_S
        if not self._silent and (done == total or late):
            self._printed = time.monotonic()
            print(f"{phase} {done}/{total}", flush=True)  # noqa: T201
