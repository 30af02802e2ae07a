"""Study folders as the workflow leaves them, made by hand: `make_study` writes study.json, `add_run` a run."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from documents import fill
from steptrace.documents.base import write
from steptrace.documents.run import RunRecord, Status, StepOfRun
from steptrace.documents.summary import Summary
from steptrace.files import write_json
from steptrace.run_folder import write_document, write_rows

MS = 1_000_000


def make_status(status: str = "ok", **changes: Any) -> Status:
    fields = {"status": status, "exit_code": 0 if status == "ok" else 1, "log_tail": []}
    return fill(Status, fields | {"started_at": "2026-01-01T00:00:00+00:00", "wall_s": 1.0} | changes)


def notes_of(variant: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The figures of a variant's notes, by code."""
    return {note["code"]: note["figures"] for note in variant["noise"]["notes"]}


class StudyFolder:
    """`results/<study>/` under construction."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def make_study(self, variants: Sequence[Mapping[str, Any]], repeats: int = 3) -> None:
        entries = [
            {"overrides": [], "hypothesis": None, "baseline": "base", "digest": f"digest of {v['name']}"} | dict(v)
            for v in variants
        ]
        study = {"name": "s", "title": "S", "question": "q?", "text": "t", "baseline": "base", "scale": "cpu"}
        write_json(self.path / "study.json", study | {"repeats": repeats, "variants": entries})

    def add_run(self, variant: str, repeat: int, step_ms: Sequence[float], **changes: Any) -> Path:
        """A run that ended well. `changes` go into run.json, but times, `summary`, `started_at` and `wall_s`."""
        run_dir = self.path / variant / f"run{repeat}"
        wait_ms = changes.pop("wait_ms", 0.0)
        profiled_ms = changes.pop("profiled_ms", [])
        if "summary" in changes:
            self.add_summary(run_dir, changes.pop("summary"))
        write_document(run_dir, make_status(**{k: changes.pop(k) for k in ("started_at", "wall_s") if k in changes}))
        write_document(run_dir, self._record(variant, repeat, changes))
        all_ms = [50.0, *step_ms, *profiled_ms]
        waits_ms = np.full(len(all_ms), wait_ms if np.isscalar(wait_ms) else 0.0)
        if not np.isscalar(wait_ms):
            waits_ms[1 : 1 + len(step_ms)] = wait_ms
        write_rows(
            run_dir,
            StepOfRun,
            pd.DataFrame(
                {
                    "phase": ["warmup"] + ["timed"] * len(step_ms) + ["profiled"] * len(profiled_ms),
                    "step": range(len(all_ms)),
                    "step_ns": np.rint(np.array(all_ms) * MS).astype(np.int64),
                    "loader_wait_ns": np.rint(waits_ms * MS).astype(np.int64),
                    "loss": np.ones(len(all_ms)),
                }
            ),
        )
        return run_dir

    def add_runs(self, variant: str, medians_ms: Sequence[float], **changes: Any) -> None:
        """One run per median, each of 20 steps around it."""
        for repeat, median in enumerate(medians_ms):
            self.add_run(variant, repeat, median * steady_steps(repeat), **changes)

    def add_summary(self, run_dir: Path, summary: Mapping[str, Any]) -> None:
        """What the analysis of the run's trace found."""
        write(run_dir / "summary.json", fill(Summary, summary))

    def _record(self, variant: str, repeat: int, changes: dict[str, Any]) -> RunRecord:
        environment = {"host": "node", "torch": "2.13.0"} | changes.pop("environment", {})
        fields = {
            "study": "s", "variant": variant, "repeat": repeat, "seed": repeat, "digest": f"digest of {variant}",
            "world_size": 1, "scale": "cpu", "device": "cpu", "clock": "monotonic", "config": {},
        }  # fmt: skip
        return fill(RunRecord, {**fields, "environment": environment, **changes})


def steady_steps(seed: int, count: int = 20) -> np.ndarray:
    """Steps of 1 +- 1 % whose median is exactly 1."""
    steps = np.exp(0.01 * np.random.default_rng(seed).standard_normal(count))
    return steps / np.median(steps)


@pytest.fixture
def folder(tmp_path: Path) -> StudyFolder:
    return StudyFolder(tmp_path / "results" / "s")


@pytest.fixture(scope="session")
def folder_at() -> Callable[[Path], StudyFolder]:
    """A study's folder anywhere."""
    return StudyFolder


@pytest.fixture
def status_of() -> Callable[..., Status]:
    return make_status


@pytest.fixture
def trace_of() -> Callable[..., dict[str, Any]]:
    """A summary.json with one trace of 2 steps; keyword arguments replace keys of the trace."""

    def make(**changes: Any) -> dict[str, Any]:
        trace = {
            "path": "trace.json.gz",
            "quality": {"steps": 2, "warnings": []},
            "gpu": {"activities": 10, "span_ns": 40 * MS},
            "steps": [
                _step(compute=10, exposed_comm=0, exposed_memory=2, idle=8),
                _step(compute=14, exposed_comm=0, exposed_memory=2, idle=4),
            ],
            "syncs": {"count": 12, "per_step": 6, "sites": []},
            "labels": [{"label": "loss", "count": 2, "host_ns": 6 * MS, "device_ns": 2 * MS}],
            "operators_per_step": 100,
            "kernels_per_step": 50,
            "gpu_busy_pct": 70.0,
            "sm_weighted_pct": 40.5,
        }
        return {"traces": [json.loads(json.dumps(trace | changes))]}

    return make


def _step(**parts_ms: int) -> dict[str, int]:
    return {f"{name}_ns": value * MS for name, value in parts_ms.items()} | {"dur_ns": sum(parts_ms.values()) * MS}
