"""From comparison.json and the runs' steps.parquet to the plain data of model.py.

Reading is tolerant of absent optional keys (they are "not measured") and strict about what a page cannot do without.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from steptrace.errors import RecordError
from steptrace.report.changes_model import load_changes
from steptrace.report.input_model import load_input
from steptrace.report.model import (
    Equivalence,
    Finding,
    Gate,
    Method,
    Part,
    Ratio,
    Run,
    RunError,
    RunSteps,
    StepTime,
    Study,
    Variant,
)
from steptrace.report.overview_model import load_overview
from steptrace.report.sites import Agreement, Site, Unknown

#: Parts of a step on the host, as the training loop labels them, in the order they run.
STEP_SECTIONS: tuple[str, ...] = ("data", "forward", "loss", "backward", "optimizer")
#: Labels of the loop inside its first part.
_INSIDE_DATA = ("copy data",)
#: Parts of a step on the GPU: they add up to the step's span exactly.
GPU_PARTS: tuple[str, ...] = ("compute", "exposed_comm", "exposed_memory", "idle")

#: Labels that PyTorch sets by itself; they are no sections of a loss.
_PROFILERS_LABELS = (
    "Optimizer.",
    "enumerate(DataLoader)",
    "DistributedDataParallel.",
    "ProfilerStep#",
    "PyTorch Profiler",
)


def load_study(path: Path | str) -> Study:
    """Read a comparison.json.

    Raises:
        RecordError: the file is missing, is not JSON or lacks the name, the baseline or the variants.
    """
    path = Path(path)
    raw = read_object(path, next_step="make it with `snakemake --cores all`")
    missing = [key for key in ("study", "baseline", "scale", "variants") if key not in raw]
    if missing:
        raise RecordError(f"comparison lacks {', '.join(missing)}", where=path, expected="a file written by compare")
    parts_kind = _parts_kind(raw["variants"])
    method = raw.get("method") or {}
    return Study(
        path=path,
        name=raw["study"],
        title=raw.get("title") or raw["study"],
        question=raw.get("question") or None,
        paragraphs=paragraphs(raw.get("text")),
        baseline=raw["baseline"],
        scale=raw["scale"],
        environment=tuple((raw.get("environment") or {}).items()),
        environments_differ=tuple(raw.get("environments_differ") or ()),
        method=Method(
            interval=method.get("interval"),
            confidence=method.get("confidence") or 0.95,
            noise_floor=method.get("noise_floor"),
            noise_floor_source=method.get("noise_floor_source"),
            correction=method.get("correction"),
        ),
        variants=tuple(_variant(item, raw["baseline"], parts_kind) for item in raw["variants"]),
        findings=tuple(finding(item) for item in raw.get("findings") or ()),
        gates=tuple(_gate(item) for item in raw.get("gates") or ()),
        parts_kind=parts_kind,
        partial=(partial["runs"], partial["planned"]) if (partial := raw.get("partial")) else None,
    )


def read_object(path: Path, *, next_step: str) -> dict[str, Any]:
    """The JSON object in `path`, or a RecordError that says what is wrong with it."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RecordError("file does not exist", where=path, next_step=next_step) from None
    except ValueError as error:
        raise RecordError(f"file is not JSON ({error})", where=path, next_step=next_step) from None
    if not isinstance(raw, dict):
        raise RecordError("file does not hold a JSON object", where=path, next_step=next_step)
    return raw


def paragraphs(text: str | None) -> tuple[str, ...]:
    """A text's paragraphs: blank lines part them, single line breaks do not."""
    blocks = (text or "").replace("\r\n", "\n").split("\n\n")
    return tuple(" ".join(block.split()) for block in blocks if block.strip())


def _parts_kind(variants: Sequence[Mapping[str, Any]]) -> str | None:
    if any(item.get("breakdown_ms") for item in variants):
        return "gpu"
    return "host" if any(item.get("sections_ms") for item in variants) else None


def _variant(raw: Mapping[str, Any], baseline: str, parts_kind: str | None) -> Variant:
    syncs = raw.get("syncs") or {}
    noise = raw.get("noise") or {}
    return Variant(
        name=raw["name"],
        status=raw.get("status") or "not run",
        hypothesis=raw.get("hypothesis") or None,
        overrides=tuple(raw.get("overrides") or ()),
        baseline=raw.get("baseline") or baseline,
        digest=raw.get("digest"),
        runs=tuple(_run(item, raw["name"]) for item in raw.get("runs") or ()),
        step=_step_time(raw.get("step_ms")),
        ratio=_ratio(raw.get("ratio")),
        iqr_over_median=noise.get("iqr_over_median"),
        warnings=tuple(noise.get("warnings") or ()),
        syncs_measured=syncs.get("measured_per_step"),
        syncs_predicted=syncs.get("predicted_per_step"),
        syncs_warned=syncs.get("warned_per_step"),
        predicted_batch_size=syncs.get("predicted_batch_size"),
        sync_sites=tuple(site(item) for item in raw.get("sync_sites") or ()),
        predicted_sites=tuple(site(item) for item in raw.get("predicted_sites") or ()),
        predicted_unknown=tuple(Unknown(**_fields(Unknown, item)) for item in raw.get("predicted_unknown") or ()),
        sync_agreement=tuple(Agreement(**_fields(Agreement, item)) for item in raw.get("sync_agreement") or ()),
        changes=load_changes(raw),
        overview=load_overview(raw),
        gpu_busy_pct=raw.get("gpu_busy_pct"),
        nvml_util_pct=raw.get("nvml_util_pct"),
        sm_weighted_pct=raw.get("sm_weighted_pct"),
        profiled_over_unprofiled=raw.get("profiled_over_unprofiled"),
        step_parts=_step_parts(raw, parts_kind),
        loss_sections=_loss_sections(raw.get("sections_ms") or {}),
        loss_sections_device=_loss_sections(raw.get("sections_device_ms") or {}),
        loader_wait_ms=raw.get("loader_wait_ms"),
        input=load_input(raw.get("input")),
        peak_allocated_bytes=raw.get("peak_allocated_bytes"),
        batch_bytes=raw.get("batch_bytes"),
        synchronised=tuple(Part(label, ms) for label, ms in (raw.get("synchronised_sections_ms") or {}).items()),
        operators_per_step=raw.get("operators_per_step"),
        kernels_per_step=raw.get("kernels_per_step"),
        equivalence=_equivalence(raw.get("equivalence")),
        samples_per_step=raw.get("samples_per_step"),
    )


def _gate(raw: Mapping[str, Any]) -> Gate:
    limits = ", ".join(f"{key.replace('_', ' ')} {_plain(value)}" for key, value in raw["limits"].items())
    return Gate(raw["variant"], raw["key"], limits, raw["outcome"], raw.get("text") or "")


def _plain(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _run(raw: Mapping[str, Any], variant: str) -> Run:
    return Run(
        variant=variant,
        repeat=int(raw.get("repeat") or 0),
        status=raw.get("status") or "not run",
        seed=raw.get("seed"),
        path=raw.get("path"),
        median_ms=raw.get("median_ms"),
        p95_ms=raw.get("p95_ms"),
        steps=raw.get("steps"),
        warmup_left_out=raw.get("warmup_left_out"),
        error=_run_error(raw.get("error")),
    )


def _run_error(raw: Mapping[str, Any] | None) -> RunError | None:
    if not raw:
        return None
    tail = raw.get("log_tail") or ()
    return RunError(
        status=raw.get("status") or "failed",
        exit_code=raw.get("exit_code"),
        signal=raw.get("signal"),
        error=raw.get("error"),
        log_tail=tuple(tail.splitlines() if isinstance(tail, str) else tail),
    )


def _step_time(raw: Mapping[str, Any] | None) -> StepTime | None:
    if not raw or raw.get("median") is None:
        return None
    return StepTime(raw["median"], *(raw.get(key) for key in ("p95", "low", "high", "runs", "steps")))


def _ratio(raw: Mapping[str, Any] | None) -> Ratio | None:
    return Ratio(*(raw.get(key) for key in ("value", "low", "high", "verdict"))) if raw else None


def site(raw: Mapping[str, Any]) -> Site:
    """A sync site from its JSON object."""
    return Site(**_fields(Site, raw))


def _fields(kind: type[Site], raw: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a site of this kind that its JSON object has, the others None."""
    return {name: raw.get(name) for name in kind.__dataclass_fields__}


def _equivalence(raw: Mapping[str, Any] | None) -> Equivalence:
    if not raw or not raw.get("status"):
        return Equivalence("not measured")
    tolerance = raw.get("tolerance") or {}
    return Equivalence(
        status=raw["status"],
        max_rel_err=raw.get("max_rel_err"),
        loss_rel_err=raw.get("loss_rel_err"),
        gradient_rel_err=raw.get("gradient_rel_err"),
        loss_tolerance=tolerance.get("loss"),
        gradient_tolerance=tolerance.get("gradient"),
        predictions_rel_err=raw.get("predictions_rel_err"),
        predictions_tolerance=tolerance.get("predictions"),
        parameters_rel_err=raw.get("parameters_rel_err"),
        parameters_tolerance=tolerance.get("parameters"),
        error=_run_error(raw) if raw["status"] == "failed" else None,
    )


def finding(raw: Mapping[str, Any]) -> Finding:
    """A finding from its JSON object; evidence that is an object becomes "key: value" text."""
    source = raw.get("source") or {}
    place = site({"file": source.get("file"), "line": source.get("line")}).place
    return Finding(
        rule=raw.get("rule") or "",
        severity=raw.get("severity") or "info",
        claim=raw.get("claim") or "",
        cost_ns_per_step=raw.get("cost_ns_per_step"),
        source=place,
        evidence=tuple(_evidence(item) for item in raw.get("evidence") or ()),
        advice=raw.get("advice") or None,
        counter_check=raw.get("counter_check") or None,
        variant=raw.get("variant"),
        cost_share=raw.get("cost_share"),
        basis=raw.get("basis") or None,
        study=raw.get("study") or None,
        condition=raw.get("condition") or None,
    )


def _evidence(item: object) -> str:
    if isinstance(item, Mapping):
        return ", ".join(f"{key.replace('_', ' ')}: {value}" for key, value in item.items())
    return str(item)


def _step_parts(raw: Mapping[str, Any], parts_kind: str | None) -> tuple[Part, ...]:
    names = GPU_PARTS if parts_kind == "gpu" else STEP_SECTIONS
    values = raw.get("breakdown_ms" if parts_kind == "gpu" else "sections_ms") or {}
    return tuple(Part(name, values[name]) for name in names if values.get(name) is not None)


def _loss_sections(sections: Mapping[str, float | None]) -> tuple[Part, ...]:
    return tuple(
        Part(label, ms)
        for label, ms in sections.items()
        if ms is not None and label not in (*STEP_SECTIONS, *_INSIDE_DATA) and not label.startswith(_PROFILERS_LABELS)
    )


def load_steps(study: Study) -> tuple[RunSteps, ...]:
    """The step times of every run that ended well and whose steps.parquet is found, in the study's order."""
    found = []
    for variant in study.variants:
        for run in variant.runs:
            path = _steps_path(study.path, run)
            if run.status == "ok" and path is not None:
                found.append(_read_steps(path, run))
    return tuple(found)


def _steps_path(comparison: Path, run: Run) -> Path | None:
    """A run's steps.parquet: always looked for beside comparison.json, so that a results folder can be moved or copied.

    Never below the working directory, where another run of the same name may lie.
    """
    candidates = [comparison.parent / run.variant / f"run{run.repeat}"]
    if run.path is not None:
        candidates.append(comparison.parent.joinpath(*Path(run.path).parts[-2:]))
    return next((folder / "steps.parquet" for folder in candidates if (folder / "steps.parquet").is_file()), None)


def _read_steps(path: Path, run: Run) -> RunSteps:
    try:
        # `read_table`, `sort_by` and `to_numpy` would import all of pandas.
        with pq.ParquetFile(path) as file:
            columns = file.read(columns=["phase", "step", "step_ns"]).to_pydict()
        order = np.argsort(columns["step"], kind="stable")
        phase = np.array(columns["phase"])[order]
        ms = np.array(columns["step_ns"], dtype=np.float64)[order] / 1e6
    except (OSError, pa.ArrowInvalid, KeyError) as error:
        raise RecordError(f"step times cannot be read ({error})", where=path, next_step="run the study again") from None
    unprofiled = phase != "profiled"
    left_out = phase == "warmup"
    first_timed = int(np.argmax(phase == "timed")) if bool((phase == "timed").any()) else len(phase)
    # Steps of the timed phase that the comparison found to be warm-up still.
    left_out[first_timed : first_timed + (run.warmup_left_out or 0)] = True
    return RunSteps(run.variant, run.repeat, ms[unprofiled], left_out[unprofiled])
