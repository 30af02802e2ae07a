"""One run of one variant: `python -m steptrace.train.main --config CONFIG.yaml --out RUNDIR --repeat K`.

Warm-up steps, unprofiled timed steps, where the config asks for it some steps with a synchronisation around each
section, then a profiled window, one step watched for its source lines, and on a GPU two for PyTorch's own warnings of
syncs. Leaves run.json, steps.parquet, sections.parquet, trace.json.gz, op_lines.parquet, sources.json and
warned_syncs.json in RUNDIR. Repeat K uses seed + K.

Progress goes to stdout as lines like `timed 12/20`: when a phase ends and, in a long one, at most every five seconds,
which costs the step concerned some microseconds.

A training that raises ends with its traceback and exit code 1; one that cannot start (a `SteptraceError`) with a
message and exit code 2.
"""

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch
from omegaconf import DictConfig, OmegaConf

from steptrace.errors import SteptraceError
from steptrace.record import RunRecord, write_run, write_sections, write_steps
from steptrace.train.environment import collect_environment
from steptrace.train.lines import record_op_lines
from steptrace.train.loop import StepTiming, Training, run_steps, step_clock
from steptrace.train.nvml import NvmlSampler
from steptrace.train.profile import ProfileSettings, profile_steps, trace_name
from steptrace.train.sections import batch_bytes, measure_sections
from steptrace.train.setup import load_config, training
from steptrace.train.warned_syncs import record_warned_syncs

_PROGRESS_PERIOD_S = 5.0


@dataclass(frozen=True)
class Measured:
    """What the steps of a run gave: the table `STEPS_OF_RUN`, peak memory and NVML's view of the timed part.

    `sections` (the table `SECTIONS_OF_RUN`) and `batch_bytes` are None unless the config asks for section steps.
    """

    steps: pd.DataFrame
    sections: pd.DataFrame | None
    batch_bytes: dict[str, int] | None
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    nvml: dict[str, float] | None
    warnings: tuple[str, ...]


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(description="Train and measure one repeat of one variant.")
    parser.add_argument("--config", type=Path, required=True, help="resolved config of the variant (YAML)")
    parser.add_argument("--out", type=Path, required=True, help="folder for the run's files")
    parser.add_argument("--repeat", type=int, required=True, help="number of the repeat, from 0")
    options = parser.parse_args(arguments)
    try:
        run(load_config(options.config), options.out, options.repeat)
    except SteptraceError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    return 0


def run(config: DictConfig, out: Path, repeat: int) -> RunRecord:
    """Do one run into folder `out`, and return its record."""
    out.mkdir(parents=True, exist_ok=True)
    seed = config.seed + repeat
    trace = out / trace_name(rank=0)
    with training(config, seed) as parts:
        environment = collect_environment(parts.device)
        measured = measure(parts, config, trace)
        warnings = (*measured.warnings, *record_op_lines(parts, out), *record_warned_syncs(parts, out))
    write_steps(out, measured.steps)
    if measured.sections is not None:
        write_sections(out, measured.sections)
    record = RunRecord(
        study=config.study,
        variant=config.variant,
        repeat=repeat,
        seed=seed,
        world_size=1,
        digest=config.digest,
        scale=config.scale.name,
        device=config.device,
        clock=step_clock(parts.device).name,
        environment=environment,
        peak_allocated_bytes=measured.peak_allocated_bytes,
        peak_reserved_bytes=measured.peak_reserved_bytes,
        nvml=measured.nvml,
        traces=(trace.name,),
        config=OmegaConf.to_container(config, resolve=True),  # type: ignore[arg-type]
        warnings=warnings,
        batch_bytes=measured.batch_bytes,
    )
    write_run(out, record)  # last: a folder with run.json is complete
    return record


def measure(parts: Training, config: DictConfig, trace: Path) -> Measured:
    """Take all steps of a run. The first phase's peak memory is left out, as first steps allocate for good."""
    on_gpu = parts.device.type == "cuda"
    settings = ProfileSettings(**config.profile)
    warmup = run_steps(parts, config.scale.warmup_steps, _progress("warmup", config.scale.warmup_steps))
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(parts.device)
    with NvmlSampler(parts.device) as sampler:
        timed = run_steps(parts, config.scale.timed_steps, _progress("timed", config.scale.timed_steps))
    peak_allocated_bytes = torch.cuda.max_memory_allocated(parts.device) if on_gpu else None
    peak_reserved_bytes = torch.cuda.max_memory_reserved(parts.device) if on_gpu else None
    section_steps = config.scale.section_steps
    # Before the window: on a GPU the profiler's hooks into the runtime stay once it has run.
    sections = measure_sections(parts, section_steps) if section_steps else None
    profiled = profile_steps(parts, settings, trace)
    _say(f"profiled {settings.steps}/{settings.steps}")
    return Measured(
        steps=steps_table(warmup, timed, profiled, unrecorded=section_steps + settings.wait + settings.warmup),
        sections=sections,
        batch_bytes=batch_bytes(parts) if section_steps else None,
        peak_allocated_bytes=peak_allocated_bytes,
        peak_reserved_bytes=peak_reserved_bytes,
        nvml=sampler.summary(),
        warnings=tuple(sampler.warnings),
    )


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


def _progress(phase: str, total: int) -> Callable[[int], None]:
    last_said = time.monotonic()

    def after_step(done: int) -> None:
        nonlocal last_said
        if done == total or time.monotonic() - last_said >= _PROGRESS_PERIOD_S:
            last_said = time.monotonic()
            _say(f"{phase} {done}/{total}")

    return after_step


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
