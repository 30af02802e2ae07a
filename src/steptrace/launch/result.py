"""The probe's records, converted to the files of a run as a study writes them. Imports no torch."""

import statistics
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import psutil

from steptrace import format as fmt
from steptrace import record
from steptrace.documents.run import RunMemory, RunRecord
from steptrace.engine.files import move_trace, steps_table, write_lines
from steptrace.errors import LaunchError
from steptrace.launch.start import ADVICE, Launched, ended, why
from steptrace.machine import environment

#: A program that ended early needs this many timed steps to count.
_LEAST: Final = 2


@dataclass(frozen=True)
class Named:
    """A run's labels, and the digest of its configuration."""

    study: str = "run"
    variant: str = "program"
    repeat: int = 0
    seed: int = 0
    digest: str = ""
    scale: str = "auto"


def write_results(launched: Launched, run_dir: Path, named: Named, program: dict[str, Any]) -> RunRecord:
    """Write run.json, steps.parquet, traces, memory.json and the operators' lines into `run_dir`.

    Args:
        launched: a program that made steps (`require_steps`).
        run_dir: the run's folder.
        named: labels and digest of the record.
        program: the program as the record's config names it.

    Raises:
        LaunchError: fewer than two of its steps were timed.
    """
    ranks = launched.ranks
    steps = steps_table([rank.get("rows") or [] for rank in ranks])
    timed = int((steps["phase"] == "timed").sum())
    if timed < _LEAST:
        seen = fmt.plural(min(rank["steps_seen"] for rank in ranks), "step")
        raise LaunchError(
            f"{ended(launched)} after {seen}, before two were timed",
            where=" ".join(program["command"]),
            expected="a program that trains for more steps than the warm-up takes",
            next_step=why(launched) if launched.failed else f"a smaller --warmup; {ADVICE}",
        )
    run_dir.mkdir(parents=True, exist_ok=True)
    record.write_steps(run_dir, steps)
    traces = _move_traces(launched, run_dir)
    write_lines(launched.out, run_dir)
    first = ranks[0]
    batch = _batch(first)
    gpu = first["gpu"]
    _write_memory(first, batch, run_dir)
    run = RunRecord(
        **asdict(named),
        world_size=max(rank["world_size"] for rank in ranks),
        device="cuda" if gpu else "cpu",
        clock=first["clock"],
        environment=environment(first, folder if (folder := Path(first["cwd"])).is_dir() else None),
        peak_allocated_bytes=(first.get("memory") or {}).get("peak_allocated_bytes"),
        peak_reserved_bytes=(first.get("memory") or {}).get("peak_reserved_bytes"),
        nvml=first.get("nvml"),
        traces=traces,
        config={"program": program, **batch},
        warnings=tuple(_warnings(launched)),
    )
    record.write_run(run_dir, run)  # last: a folder with run.json is complete
    return run


def prediction_of(launched: Launched, command: str) -> dict[str, Any]:
    """The prediction of a followed program, as prediction.json has it: counts are means over its steps (`by_step`).

    Raises:
        LaunchError: no step was followed to its end.
    """
    prediction = dict(launched.ranks[0]["prediction"])
    steps = len(prediction["by_step"])
    if not steps:
        too_few = "fewer --warmup and --steps, or a program that trains for more steps"
        raise LaunchError(
            f"no step was followed to its end on the virtual device: {ended(launched)}",
            where=command,
            next_step=why(launched) if launched.failed else too_few,
        )
    prediction["total"] = _per_step(sum(prediction["by_step"]), steps)
    ranks = [rank["prediction"]["by_step"] for rank in launched.ranks]
    prediction["by_rank"] = [_per_step(sum(counts), len(counts)) for counts in ranks if counts]
    prediction["operators"] = _per_step(prediction["operators"], steps)
    prediction["operators_per_section"] = {
        name: _per_step(n, steps) for name, n in prediction["operators_per_section"].items()
    }
    for places in ("sites", "unknown", "assumed"):
        prediction[places] = [{**place, "count": _per_step(place["count"], steps)} for place in prediction[places]]
    return prediction


def _per_step(count: int, steps: int) -> float:
    """A count per step; whole numbers stay whole."""
    return count // steps if count % steps == 0 else count / steps


def _batch(rank: dict[str, Any]) -> dict[str, Any]:
    """Samples in a batch and batches in a step, as in most timed steps; without those that vary."""
    timed = [row for row in rank["rows"] if row["phase"] == "timed"]
    batches = statistics.mode(row["batches"] for row in timed)
    samples = statistics.mode(row["samples"] for row in timed if row["batches"] == batches)
    batch: dict[str, Any] = {"step": {"accumulate": batches or statistics.mode(row["backwards"] for row in timed) or 1}}
    if batches and samples and samples % batches == 0:
        batch["data"] = {"batch_size": samples // batches}
    return batch


def _move_traces(launched: Launched, run_dir: Path) -> tuple[str, ...]:
    """Move the traces into the run's folder; returns their names in the order of the ranks."""
    for old in (*run_dir.glob("trace*.json.gz"), *run_dir.glob("capture*.json")):
        old.unlink()
    files = [launched.out / (rank.get("trace") or {}).get("file", "trace.json.gz") for rank in launched.ranks]
    names = (move_trace(file, run_dir, rank["rank"]) for file, rank in zip(files, launched.ranks, strict=True))
    return tuple(name for name in names if name is not None)


def _write_memory(rank: dict[str, Any], batch: dict[str, Any], run_dir: Path) -> None:
    """Write memory.json; needs the size of a batch."""
    size, memory, gpu = batch.get("data", {}).get("batch_size"), rank.get("memory"), rank["gpu"]
    if size is None or memory is None:
        return
    capacity, source = (gpu["memory_bytes"], "device") if gpu else (psutil.virtual_memory().total, "machine")
    held = memory["held"]
    run_memory = RunMemory(
        device="cuda" if gpu else "cpu",
        batch_size=size,
        capacity_bytes=capacity,
        capacity_source=source,
        held=held,
        gradient_bytes=held.get("gradients") or None,  # most programs let go of them before a step ends
    )
    record.write_memory(run_dir, run_memory)


def _warnings(launched: Launched) -> list[str]:
    """What was requested but not measured, or only in part."""
    first = launched.ranks[0]
    warnings = list(first.get("warnings") or [])
    trace = first.get("trace")
    if trace is not None and trace["state"] != "recorded":
        warnings.append(f"no complete trace of the profiled steps: {trace['message']}")
    skipped = sum(row["skipped"] for row in first["rows"] if row["phase"] == "timed")
    if skipped:
        warnings.append(f"a gradient scaler has skipped {skipped} of the timed steps")
    if not launched.complete:
        timed = sum(row["phase"] == "timed" for row in first["rows"])
        warnings.append(f"the program ended after {timed} timed steps, with exit code {launched.exit_code}")
    return warnings
