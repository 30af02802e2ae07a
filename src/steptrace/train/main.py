"""The program of a study's variant: `python -m steptrace.train CONFIG.yaml [--out RUNDIR] [--repeat K]`.

It trains and calls `steptrace.step()` after each step. Without `--out` it does so until it is stopped from outside, as
by `steptrace run -- python -m steptrace.train CONFIG.yaml`. With `--out` the same engine (`steptrace.engine.measure`)
hears of the steps in this process, and a study's extra passes (sections, input and memory) come between the timed and
the profiled ones. It writes run.json, steps.parquet, sections.parquet, input.parquet, trace.json.gz, op_lines.parquet,
sources.json, warned_syncs.json and memory.json to RUNDIR. Repeat K uses seed + K.

With `distributed.world_size` above 1 `torchrun` starts it, once per rank. Every rank runs the same steps and writes its
own trace; the other files are rank 0's. Only the step times are those of the slowest rank, step by step: they are
gathered after the last step, when the bandwidth between the ranks is measured, too (communication.json).

A training that raises ends with its traceback and exit code 1; one that cannot start (a `SteptraceError`) with a
message and exit code 2.
"""

import argparse
import faulthandler
import signal
from pathlib import Path
from typing import Any, Final

from omegaconf import DictConfig, OmegaConf
from torch import nn

import steptrace
from steptrace.documents.base import convert
from steptrace.documents.probe import RankRecord
from steptrace.engine.device import MemoryLook, process_record
from steptrace.engine.files import trace_fault, write_files
from steptrace.engine.measure import Measurement, MeasureSettings, Phases
from steptrace.engine.rank_record import plain_record
from steptrace.engine.recording import Settings
from steptrace.engine.steps import Step
from steptrace.errors import TrainError, code_of
from steptrace.files import scratch_folder
from steptrace.rank import Rank, this_rank
from steptrace.record import write_document
from steptrace.train.distributed import barrier, communication, from_every_rank, process_group, ranks_of
from steptrace.train.loop import Training, train_step
from steptrace.train.passes import StudyPasses
from steptrace.train.setup import load_config, training
from steptrace.words.notes import note_text

_MIB: Final = 2**20


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m steptrace.train", description="Train a variant of a study.")
    parser.add_argument("config", type=Path, help="resolved config of the variant (YAML)")
    parser.add_argument("--out", type=Path, help="measure it, and write the run's files into this folder")
    parser.add_argument("--repeat", type=int, default=0, help="number of the repeat, from 0")
    options = parser.parse_args(arguments)
    faulthandler.register(signal.SIGTERM, file=2, chain=True)  # stopped at its time limit, it says where it was
    return code_of(lambda: _train(options))


def _train(options: argparse.Namespace) -> int:
    config = load_config(options.config)
    if options.out is None:
        until_stopped(config, options.repeat)
    else:
        run(config, options.out, options.repeat)
    return 0


def until_stopped(config: DictConfig, repeat: int) -> None:
    """Train until stopped from outside."""
    ranks = ranks_of(config)
    with process_group(config, ranks), training(config, config.seed + repeat, ranks) as parts:
        train(parts)


def train(parts: Training, phases: Phases | None = None, *, batch_size: int = 0) -> None:
    """Train, and say at the end of each step that it is one, until the engine's phases end, if there are any.

    They get each step of `batch_size` samples a batch, or the error that it raised.
    """

    def to_phases() -> None:
        assert phases is not None
        samples = parts.accumulate * batch_size
        phases.send(Step(parts.accumulate, parts.accumulate, samples, wait_ns, losses=[loss]))

    if phases is not None:
        next(phases)
        steptrace.on_step = to_phases
    try:
        while True:
            try:
                loss, wait_ns = train_step(parts)
            except Exception as error:  # in a watched step they go on; other phases raise it again
                if phases is None:
                    raise
                phases.throw(error)
            else:
                steptrace.step()
    except StopIteration:
        pass  # the phases have ended
    finally:
        if phases is not None:
            steptrace.on_step = None
            phases.close()


def run(config: DictConfig, out: Path, repeat: int) -> None:
    """Do one run, or one rank's part of it, into folder `out`."""
    out.mkdir(parents=True, exist_ok=True)
    ranks = ranks_of(config)
    with process_group(config, ranks):
        _run(config, out, repeat, ranks)  # a separate call, so that the model is freed before the group


def _run(config: DictConfig, out: Path, repeat: int, ranks: Rank) -> None:
    explained = config.profile.repeats is None or repeat < config.profile.repeats
    with scratch_folder(out.resolve()) as measured:  # its files are named in full
        with training(config, config.seed + repeat, ranks) as parts:
            left, passes = measure(parts, config, Path(measured), explained=explained)
            if (fault := trace_fault(left.get("trace"))) is not None:
                raise TrainError(note_text(fault), where=out)
            passes.memory.note_workspaces()
            recorded = plain_record({**left, **process_record(), "memory": passes.memory.record})
            every = [convert(rank, RankRecord) for rank in from_every_rank(recorded, ranks)]
            between_ranks = None if ranks.alone else communication(parts.model, parts.device, config, ranks)
        if ranks.rank == 0:
            if between_ranks is not None:
                write_document(out, between_ranks)
            passes.write(out)
            labels = {key: config[key] for key in ("study", "variant", "digest")}
            labels |= {"repeat": repeat, "seed": config.seed + repeat, "scale": config.scale.name}
            labels |= {"config": OmegaConf.to_container(config, resolve=True), "batch_bytes": passes.batch_bytes}
            limit_mb, size = config.scale.memory_limit_mb, config.data.batch_size
            limit = None if limit_mb is None else limit_mb * _MIB
            write_files(every, Path(measured), out, labels, batch_size=size, limit_bytes=limit)
        barrier(ranks)  # every trace has been moved


def measure(
    parts: Training, config: DictConfig, folder: Path, *, explained: bool
) -> tuple[dict[str, Any], StudyPasses]:
    """Train through the engine's phases; without `explained` only the timed ones and the memory pass.

    Returns:
        The engine's record (`Measurement.record`; its files are in `folder`), and the passes of the study.
    """
    scale, window = config.scale, config.profile
    modules = [module for module in (parts.model, parts.loss) if isinstance(module, nn.Module)]
    passes = StudyPasses(parts, config, MemoryLook(modules, [parts.optimizer]), explained=explained)
    profiled = Settings(window.active, window.warmup, window.with_stack, window.record_shapes, window.profile_memory)
    settings = MeasureSettings(
        folder,
        scale.warmup_steps,
        scale.timed_steps,
        profiled if explained else None,
        at_most_s=scale.at_most_s,
        ours=True,
    )
    measurement = Measurement(settings, between=passes.between, progress=_print_end)
    passes.that_fit = measurement.that_fit
    barrier(parts.ranks)  # else the first step would include the wait for a later rank
    train(parts, measurement.phases(), batch_size=config.data.batch_size)
    return measurement.record, passes


def _print_end(phase: str, done: int, total: int) -> None:
    """A line at the end of each phase, on rank 0."""
    if done == total and not this_rank().rank:
        print(f"{phase} {done}/{total}", flush=True)  # noqa: T201
