"""One run of one variant: `python -m steptrace.train.main --config CONFIG.yaml --out RUNDIR --repeat K`.

Warm-up steps, unprofiled timed steps, where the config asks for it some steps with a synchronisation around each
section and some that time the parts of loading a batch, then a profiled window, one step watched for its source lines,
and on a GPU two for PyTorch's own warnings of syncs. Leaves run.json, steps.parquet, sections.parquet, input.parquet,
trace.json.gz, op_lines.parquet, sources.json, warned_syncs.json and memory.json in RUNDIR. Repeat K uses seed + K.

With `distributed.world_size` above 1 it is started by `torchrun`, once per rank. Every rank goes through the same
steps and leaves its own trace; the rest is rank 0's. Only the step times are those of the slowest rank, step by step:
they are gathered after the last step, when the bandwidth between the ranks is measured too (communication.json).

A training that raises ends with its traceback and exit code 1; one that cannot start (a `SteptraceError`) with a
message and exit code 2.
"""

import argparse
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
import pyarrow.parquet  # noqa: F401  with the next line: what every run would import later, once for all of a fork server
import torch
import torch._dynamo
from omegaconf import DictConfig, OmegaConf
from torch.distributed.elastic.multiprocessing.errors import record as told_to_torchrun

from steptrace.deadline import write_stacks_before_it
from steptrace.documents.run import RunRecord
from steptrace.errors import SteptraceError
from steptrace.record import write_communication, write_memory, write_rows, write_run, write_steps
from steptrace.schema import INPUT_OF_RUN, SECTIONS_OF_RUN
from steptrace.train import passes
from steptrace.train.arrangement import check_compiled, compilations, recompiled
from steptrace.train.bandwidth import communication
from steptrace.train.distributed import Ranks, barrier, from_every_rank, process_group, ranks_of
from steptrace.train.environment import collect_environment
from steptrace.train.loop import StepTiming, Training, run_steps, step_clock
from steptrace.train.memory import MemoryWatch, watched_memory
from steptrace.train.nvml import NvmlSampler
from steptrace.train.setup import build_loader, device_of, load_config, training

#: Steps that there are at least, however long they take: a compiler works in the first ones.
_LEAST_WARMUP, _LEAST_TIMED = 3, 5
_PROGRESS_PERIOD_S = 5.0


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(description="Train and measure one repeat of one variant.")
    parser.add_argument("--config", type=Path, required=True, help="resolved config of the variant (YAML)")
    parser.add_argument("--out", type=Path, required=True, help="folder for the run's files")
    parser.add_argument("--repeat", type=int, required=True, help="number of the repeat, from 0")
    options = parser.parse_args(arguments)
    write_stacks_before_it()
    try:
        run(load_config(options.config), options.out, options.repeat)
    except SteptraceError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    return 0


def run(config: DictConfig, out: Path, repeat: int) -> RunRecord:
    """Do one run, or one rank's part of it, into folder `out`, and return its record."""
    out.mkdir(parents=True, exist_ok=True)
    ranks = ranks_of(config)
    with process_group(config, ranks):
        return _run(config, out, repeat, ranks)  # a call of its own: the model is gone before the group is


def _run(config: DictConfig, out: Path, repeat: int, ranks: Ranks) -> RunRecord:
    seed = config.seed + repeat
    explained = config.profile.repeats is None or repeat < config.profile.repeats
    traces = tuple(passes.trace_name(rank) for rank in range(ranks.world_size)) if explained else ()
    with (
        nullcontext(out) if ranks.rank == 0 else TemporaryDirectory() as folder,  # the others would say the same
        watched_memory(config, device_of(config, ranks), out) as memory,  # any rank may run out
        training(config, seed, ranks) as parts,
    ):
        memory.training = parts
        own = Path(folder)
        environment = collect_environment(parts.device)
        steps, figures = measure(parts, config, memory, own, out / traces[ranks.rank] if explained else None)
        if explained:
            figures["warnings"] += (*passes.record_op_lines(parts, own), *passes.record_warned_syncs(parts, own))
        write_steps(own, slowest(from_every_rank(steps, ranks)))
        if not ranks.alone:
            write_communication(own, communication(parts, config))
        barrier(ranks)  # every trace is written
    record = RunRecord(
        study=config.study,
        variant=config.variant,
        repeat=repeat,
        seed=seed,
        world_size=ranks.world_size,
        digest=config.digest,
        scale=config.scale.name,
        device=config.device,
        clock=step_clock(parts.device).name,
        environment=environment,
        traces=traces,
        config=OmegaConf.to_container(config, resolve=True),  # type: ignore[arg-type]
        **figures,
    )
    if ranks.rank == 0:
        write_run(out, record)  # last: a folder with run.json is complete
    return record


def slowest(by_rank: list[pd.DataFrame]) -> pd.DataFrame:
    """One table `STEPS_OF_RUN` of every rank's: the longest time and wait of each step, the mean of the losses."""
    if len(by_rank) == 1:
        return by_rank[0]
    steps = pd.concat(by_rank).groupby(["phase", "step"], sort=False, as_index=False)
    return steps.agg({"step_ns": "max", "loader_wait_ns": "max", "loss": "mean"})


def measure(
    parts: Training, config: DictConfig, memory: MemoryWatch, own: Path, trace: Path | None
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Take all steps of a run; without a `trace` to write only those that are timed, and one for the memory.

    The first phase's peak memory is left out, as first steps allocate for good.

    Returns:
        The table `STEPS_OF_RUN`, and fields of the run's record; memory.json and the other tables are in folder `own`.
    """
    on_gpu, scale = parts.device.type == "cuda", config.scale
    warmup = run_steps(
        parts,
        scale.warmup_steps,
        _progress("warmup", scale.warmup_steps, parts.ranks),
        at_most_s=scale.get("at_most_s"),
        at_least=_LEAST_WARMUP,
    )
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(parts.device)
    graphs = compilations()
    with NvmlSampler(parts.device, scale.nvml_period_s) as sampler:
        timed = run_steps(
            parts,
            scale.timed_steps,
            _progress("timed", scale.timed_steps, parts.ranks),
            at_most_s=scale.get("at_most_s"),
            at_least=_LEAST_TIMED,
        )
    figures: dict[str, Any] = {
        "warnings": (*sampler.warnings, *recompiled(graphs), *_ended_early(len(timed), scale)),
        "nvml": sampler.summary(),
        "peak_allocated_bytes": torch.cuda.max_memory_allocated(parts.device) if on_gpu else None,
        "peak_reserved_bytes": torch.cuda.max_memory_reserved(parts.device) if on_gpu else None,
    }
    check_compiled(config.step)
    unrecorded = 1  # the one for the memory
    tables = {}
    # Before the window: on a GPU the profiler's hooks into the runtime stay once it has run.
    if trace and scale.section_steps:
        tables[SECTIONS_OF_RUN] = passes.measure_sections(parts, scale.section_steps)
        unrecorded += scale.section_steps
    if trace and scale.input_steps:
        loader = build_loader(config, parts.device, config.seed, parts.ranks)
        tables[INPUT_OF_RUN] = passes.measure_input(parts, loader, scale.input_steps)
        unrecorded += passes.left_out(loader) + scale.input_steps
    held = memory.measure()
    memory.end_limit()  # what the profiler keeps is not the training's
    for table, rows in tables.items():
        write_rows(own, table, rows)
    profiled = []
    if trace:
        profiled = passes.profile_steps(parts, config.profile, trace)
        before = config.profile.wait + config.profile.warmup
        unrecorded += before
        _progress("profiled", before + config.profile.active, parts.ranks)(before + config.profile.active)
    figures["batch_bytes"] = passes.batch_bytes(parts) if SECTIONS_OF_RUN in tables else None
    write_memory(own, memory.with_workspaces(held))
    return steps_table(warmup, timed, profiled, unrecorded=unrecorded), figures


def _ended_early(timed: int, scale: DictConfig) -> list[str]:
    """A warning where time ran out before all steps were timed."""
    if timed == scale.timed_steps:
        return []
    return [f"{timed} of {scale.timed_steps} planned steps were timed: scale.at_most_s is {scale.at_most_s:g} s"]


def steps_table(
    warmup: list[StepTiming], timed: list[StepTiming], profiled: list[StepTiming], *, unrecorded: int
) -> pd.DataFrame:
    """The table `STEPS_OF_RUN`. The `unrecorded` steps before the profiled ones have indices, but no rows."""
    phases = {"warmup": (0, warmup), "timed": (len(warmup), timed)}
    phases["profiled"] = (len(warmup) + len(timed) + unrecorded, profiled)
    rows = [
        (phase, first + i, step.step_ns, step.loader_wait_ns, step.loss)
        for phase, (first, steps) in phases.items()
        for i, step in enumerate(steps)
    ]
    return pd.DataFrame(rows, columns=["phase", "step", "step_ns", "loader_wait_ns", "loss"])


def _progress(phase: str, total: int, ranks: Ranks) -> Callable[[int], None]:
    last_said = time.monotonic()

    def after_step(done: int) -> None:
        nonlocal last_said
        if ranks.rank > 0:
            return
        if done == total or time.monotonic() - last_said >= _PROGRESS_PERIOD_S:
            last_said = time.monotonic()
            print(f"{phase} {done}/{total}", flush=True)  # noqa: T201

    return after_step


@told_to_torchrun
def _start() -> None:
    sys.exit(main())


if __name__ == "__main__":
    _start()
