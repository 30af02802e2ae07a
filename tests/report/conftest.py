"""Made comparisons as compare.py writes them, with the runs' steps.parquet beside them."""

import copy
import functools
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from builders import TraceBuilder, training_step
from documents import fill
from steptrace.analysis import summarize
from steptrace.compare.results import compare_results
from steptrace.diff import diff, read_sides
from steptrace.documents.base import read, version_of, write
from steptrace.documents.comparison import Comparison
from steptrace.files import write_text
from steptrace.report import diff as diff_page
from steptrace.report import results as results_page
from steptrace.report.index import render_index
from steptrace.report.study import load_study
from steptrace.report.study_page import render_study
from steptrace.report.trace import page as trace_page

Json = dict[str, Any]

ENVIRONMENT: Json = {
    "host": "node-07", "os": "Linux 6.1.0 x86_64", "cpu": "Intel Xeon Platinum 8488C", "cpu_count": 2,
    "memory_bytes": 25_200_000_000, "python": "3.11.7", "torch": "2.13.0+cpu", "steptrace": "0.1.0",
    "git_commit": "73b4e1e0c4a5d0cf7d0b4b64b1d1b7a3b0c9f00d", "git_dirty": True,
}  # fmt: skip
GPU: Json = {
    "gpu": "NVIDIA H200", "gpu_count": 1, "gpu_memory_bytes": 150_754_820_096, "driver": "570.86.15", "cuda": "13.0",
    "torch": "2.13.0+cu130", "git_dirty": False, "cpu_count": 16,
}  # fmt: skip
METHOD: Json = {
    "interval": "Log-t on run medians: the mean log ratio of the runs' medians, with Student's t over runs.",
    "confidence": 0.95,
    "noise_floor": 0.01,
    "noise_floor_source": "default",
    "correction": "Holm over 3 candidates",
}
TEXT = (
    "A segmentation network with ten 3x3 convolutions, trained on random images whose label maps hold an\n"
    "ignore value. The loss counts neither ignored nor background pixels.\n\n"
    "All variants compute the same function: the final listing of the article dropped the background and the\n"
    "distinct-label logic, here `ignore_index` keeps both."
)
HYPOTHESES = {
    "boolean_mask": "the article's first version: `nonzero`, `unique` and boolean masks",
    "where": "replacing `nonzero` by `torch.where` removes one wait",
    "sort": "counting distinct labels by sorting removes `unique`",
    "ignore_index": "nothing depends on data any more, so nothing waits",
}
CODE = "/home/user/lab/src/steptrace/workloads/masked_losses.py"


def site(line: int, op: str, label: str, code: str, **more: object) -> Json:
    function = "BooleanMaskLoss.__call__"
    return {
        "file": CODE, "line": line, "function": function, "op": op, "label": label, "kind": "d2h_copy", "phase": "loss",
        "code": code, "count_per_step": 1, **more,
    }  # fmt: skip


SITES: list[Json] = [
    site(48, "aten::nonzero", "non_zero", "background = torch.nonzero(target == 9)"),
    site(52, "aten::_unique2", "unique", "labels = torch.unique(target)", count_per_step=2),
    site(57, "aten::nonzero", "mask", "kept = target[target != self.ignore]"),
    site(58, "aten::nonzero", "mask", "logits = logits[target != self.ignore]"),
    site(58, "aten::nonzero", "mask", "logits = logits[target != self.ignore]", phase="backward"),
]


class StudyBuilder:
    """Builds a results folder for one study; `write` returns its comparison.json."""

    def __init__(self, results: Path, **study: object) -> None:
        self.results = results
        self.random = np.random.default_rng(7)
        self.comparison: Json = {
            "schema_version": version_of(Comparison),
            "study": "masked_loss",
            "title": "Masked segmentation loss",
            "question": "Which host syncs of a masked loss cost step time, and which only move the wait?",
            "text": TEXT,
            "baseline": "boolean_mask",
            "scale": "cpu",
            "environment": ENVIRONMENT,
            "method": METHOD,
            "variants": [],
            "findings": [],
            **study,
        }

    @property
    def folder(self) -> Path:
        return self.results / str(self.comparison["study"])

    def add(self, name: str, medians: list[float], *, steps: int = 20, **fields: object) -> Json:
        """A variant whose runs ended well, with these medians in ms."""
        runs = [self._timed(name, repeat, median, steps) for repeat, median in enumerate(medians)]
        medians_ms = [run["median_ms"] for run in runs]
        low, high = (min(medians_ms) * 0.995, max(medians_ms) * 1.005) if len(medians_ms) > 1 else (None, None)
        measured: Json = {
            "step_ms": {
                "median": float(np.median(medians_ms)),
                "mean": float(np.median(medians_ms)),
                "statistic": "median",
                "p95": float(max(run["p95_ms"] for run in runs)),
                "low": low,
                "high": high,
                "runs": len(runs),
                "steps": steps * len(runs),
            },
            "noise": {"iqr_over_median": 0.031, "warnings": []},
            "profiled_over_unprofiled": 1.04,
            "operators_per_step": 412,
            "equivalence": {
                "status": "same",
                "max_rel_err": 1.4e-7,
                "loss_rel_err": 6e-8,
                "gradient_rel_err": 1.4e-7,
                "tolerance": {"loss": 1e-5, "gradient": 1e-4},
            },
        }
        return self._append(name, "ok", runs, {**measured, **fields})

    def fail(self, name: str, status: str, error: Json, *, repeats: int = 3) -> Json:
        """A variant whose every run ended with `error`."""
        fields = {"status": status, "error": {"status": status, "exit_code": 1, **error}}
        return self._append(name, status, [self.run(name, repeat, **fields) for repeat in range(repeats)], {})

    def _append(self, name: str, status: str, runs: list[Json], fields: Json) -> Json:
        variant: Json = {
            "name": name,
            "status": status,
            "hypothesis": HYPOTHESES.get(name, ""),
            "overrides": [f"loss={name}"],
            "baseline": self.comparison["baseline"],
            "digest": f"{name.encode().hex():0<64}"[:64],
            "runs": runs,
            "equivalence": {"status": "not measured"},
            **copy.deepcopy(fields),
        }
        self.comparison["variants"].append(variant)
        return variant

    def run(self, name: str, repeat: int, **fields: object) -> Json:
        """A run's entry; it ended well if nothing else is said."""
        path = f"results/{self.comparison['study']}/{name}/run{repeat}"
        return {"repeat": repeat, "status": "ok", "seed": repeat, "path": path, **fields}

    def _timed(self, name: str, repeat: int, median: float, steps: int) -> Json:
        folder = self.folder / name / f"run{repeat}"
        folder.mkdir(parents=True, exist_ok=True)
        warmup = median * np.array([6.0, 1.4, 1.15, 1.03, 1.02])
        timed = median * self.random.lognormal(0, 0.02, steps)
        timed[self.random.integers(steps)] *= 1.25
        times = np.concatenate([warmup, timed, median * 1.05 * np.ones(3)])
        phases = ["warmup"] * 5 + ["timed"] * steps + ["profiled"] * 3
        table = {
            "phase": phases,
            "step": np.arange(times.size),
            "step_ns": (times * 1e6).astype(np.int64),
            "loader_wait_ns": np.full(times.size, 120_000),
            "loss": np.full(times.size, 2.3),
        }
        pq.write_table(pa.table(table), folder / "steps.parquet")
        median_ms, mean_ms = float(np.median(timed)), float(np.mean(timed))
        measured = {"median_ms": median_ms, "mean_ms": mean_ms, "p95_ms": float(np.percentile(timed, 95))}
        return self.run(name, repeat, steps=steps, warmup_left_out=0, **measured)

    def write(self) -> Path:
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / "comparison.json"
        return write(path, fill(Comparison, self.comparison))

    def study(self) -> Comparison:
        """What pages are made of, as it is read from that file."""
        return load_study(self.write())


def ratio(value: float, low: float | None, high: float | None, verdict: str | None) -> Json:
    return {"value": value, "low": low, "high": high, "verdict": verdict}


BASE = ratio(1.0, None, None, "baseline")
#: A step on the host, as the training loop labels its parts, and their shares of it.
STEP_SHARES = {"data": 0.01, "forward": 0.3, "loss": 0.16, "backward": 0.51, "optimizer": 0.02}


def traced(total: float, gpu_parts: Json | None = None, sites: Sequence[Json] = (), **own: float) -> Json:
    """A variant's `trace` of one step: labels that take these ms, the GPU's parts in ms, and where it syncs."""
    sections = {label: share * total for label, share in STEP_SHARES.items()}
    sections |= own | {"copy data": 0.05, "Optimizer.step#SGD.step": 0.3}
    parts = gpu_parts or {name: sections[name] for name in STEP_SHARES}
    overview = {"kind": "gpu" if gpu_parts else "host", "steps": 1, "window_ns": round(sum(parts.values()) * 1e6)}
    return {
        "overview": {**overview, "parts_ns": {name: round(ms * 1e6) for name, ms in parts.items()}},
        "labels": [{"label": label, "host_ns": round(ms * 1e6)} for label, ms in sections.items()],
        "syncs": {
            "sites": list(sites),
            "ceiling_ns": 9_000_000 if sites else None,
            "blocked_ns": sum(site["blocked_ns"] for site in sites) if gpu_parts else None,
        },
        "quality": {"steps": 1},
    }


def cpu_study(results: Path) -> Path:
    """A CPU machine: nothing of a GPU is measured, syncs are predicted."""
    build = StudyBuilder(results)
    names = ["create mask", "permute", "mask", "calc loss", "non_zero", "index assignment", "unique", "numel"]
    own = dict(zip(names, [0.21, 0.02, 0.62, 1.1, 0.4, 0.11, 0.9, 0.004], strict=True))
    build.add(
        "boolean_mask",
        [12.41, 12.6, 12.33],
        ratio=BASE,
        trace=traced(12.5, **own),
        syncs={"predicted_per_step": 6},
        predicted_sites=SITES,
    )
    del own["non_zero"], own["index assignment"]
    build.add(
        "where",
        [12.3, 12.52, 12.2],
        ratio=ratio(1.0081, 0.982, 1.034, "undecided"),
        trace=traced(12.3, **own, where=0.2),
        predicted_sites=SITES[1:],
        syncs={"predicted_per_step": 4},
        noise={"iqr_over_median": 0.12, "warnings": ["interquartile range is 12 % of the median"]},
    )
    build.add(
        "sort",
        [14.9, 15.1, 15.4],
        ratio=ratio(0.823, 0.801, 0.845, "slower"),
        trace=traced(15, mask=0.6, sort=3.1),
        predicted_sites=SITES[2:],
        syncs={"predicted_per_step": 3},
    )
    build.add(
        "ignore_index",
        [10.5, 10.6, 10.47],
        ratio=ratio(1.1837, 1.1213, 1.2496, "faster"),
        trace=traced(10.5, sort=3.05, where=0.18, **{"calc loss": 0.7}),
        syncs={"predicted_per_step": 0},
        profiled_over_unprofiled=1.21,
    )
    build.comparison["findings"] = [
        {
            "rule": "profiler_overhead", "severity": "info", "claim": "The profiler slows `ignore_index` by 21 %.",
            "evidence": ["profiled 12.8 ms, unprofiled 10.6 ms"], "counter_check": "Profile without stacks.",
            "advice": "Read its trace figures as shares, not as times.", "variant": "ignore_index",
        }
    ]  # fmt: skip
    return build.write()


#: A variant's memory on a GPU, with its course over a step.
MEMORY: Json = {
    "device_type": "cuda", "peak_allocated_bytes": 180 * 2**20, "complete": True, "peak_ts": 5,
    "by_category": {"activations": 170 * 2**20},
    "curve": [[0, 2**20, 2**28], [5, 180 * 2**20, 2**28], [9, 2**20, 2**28]],
}  # fmt: skip


def gpu_study(results: Path) -> Path:
    """A GPU machine: syncs with sites, utilisation, breakdown, findings and a variant whose answer differs."""
    drivers = {"driver": [GPU["driver"], "565.57.01"]}
    build = StudyBuilder(results, scale="gpu", environment={**ENVIRONMENT, **GPU}, environments_differ=drivers)
    measured = [
        {**item, "count": item["count_per_step"], "blocked_ns": round(blocked), "exposed_idle_ns": exposed}
        for item, blocked, exposed in zip(
            SITES, [91.4e6, 2.1e6, 1.2e6, 0.4e6, 0.2e6], [310_000, 120_000, 45_000, 12_000, 0], strict=True
        )
    ]
    calc = {"calc loss": 0.2}
    shared: Json = {"nvml_util_pct": 98.6, "sm_weighted_pct": 71.2, "kernels_per_step": 181}
    parts = {"compute": 96.1, "exposed_comm": 0.0, "exposed_memory": 1.9, "idle": 12.4}
    build.add(
        "boolean_mask",
        [110.2, 110.9, 109.8],
        ratio=BASE,
        trace=traced(108, parts, measured, mask=60.1, non_zero=91.5, unique=2.2),
        syncs={"measured_per_step": 6, "predicted_per_step": 6},
        predicted_sites=SITES,
        gpu_busy_pct=88.8,
        peak_allocated_bytes=21_400_000_000,
        **shared,
    )
    build.add(
        "where",
        [109.4, 110.1, 109.6],
        memory={"device": "cuda", "batch_size": 16, "capacity_bytes": 2**36},
        ratio=ratio(1.0058, 0.9996, 1.0121, "undecided"),
        trace=traced(108, {**parts, "idle": 11.5}, measured[1:], mask=150.9, unique=2.2) | {"memory": [MEMORY]},
        syncs={"measured_per_step": 4, "predicted_per_step": 4},
        gpu_busy_pct=89.4,
        **shared,
    )
    build.add(
        "ignore_index",
        [28.1, 28.3, 28.05],
        ratio=ratio(3.918, 3.871, 3.966, "faster"),
        gpu_busy_pct=99.3,
        syncs={"measured_per_step": 0, "predicted_per_step": 0},
        trace=traced(2.0, {"compute": 27.3, "exposed_comm": 0.0, "exposed_memory": 0.5, "idle": 0.2}, **calc),
        **shared,
        equivalence={
            "status": "differs",
            "max_rel_err": 3.1e-2,
            "loss_rel_err": 3.1e-2,
            "gradient_rel_err": 8e-3,
            "tolerance": {"loss": 1e-5, "gradient": 1e-4},
        },
    )
    build.comparison["findings"] = [
        {
            "rule": "host_sync", "severity": "high",
            "claim": "The host waits 91.4 ms of every step at `torch.nonzero`, while 0.31 ms of GPU idle is exposed.",
            "cost_ns_per_step": 310_000, "source": {"file": CODE, "line": 48},
            "evidence": ["count per step: 1, blocked: 91.4 ms", "steps 3 to 5, correlation 8812"],
            "advice": "Replace the data-dependent shape by `torch.where`.",
            "counter_check": "If the wait only moves to the next sync, the step time stays.", "variant": "boolean_mask",
        },
        {
            "rule": "launch_bound", "severity": "warning", "claim": "11 % of the step the GPU waits for launches.",
            "cost_ns_per_step": 12_100_000, "variant": "where",
        },
    ]  # fmt: skip
    return build.write()


def broken_study(results: Path) -> Path:
    """Some variants failed, one ran out of memory, one was killed half-way, one has never run."""
    build = StudyBuilder(results, title="Losses that break")
    build.add("boolean_mask", [12.4, 12.6, 12.3], ratio=BASE, trace=traced(12.5, mask=0.6))
    hostile = "<script>alert('x')</script> ValueError: target & logits differ"
    build.fail("where", "failed", {"error": hostile, "log_tail": ["Traceback (most recent call last):", hostile]})
    memory = "CUDA out of memory. Tried to allocate 20.00 GiB"
    build.fail("sort", "out of memory", {"error": memory, "log_tail": ["step 3", "step 4"]})
    half = build.add("ignore_index", [10.5, 10.6, 10.4], ratio=ratio(1.18, 1.02, 1.36, "faster"))
    half["runs"][2] = build.run("ignore_index", 2, status="killed", error={"status": "killed", "signal": 9})
    build.fail("never", "not run", {}, repeats=0)
    return build.write()


def matrix_study(results: Path) -> Path:
    """Twelve variants in three cells, each compared with the baseline of its cell; names are long."""
    build = StudyBuilder(results, study="masked_loss_matrix", title="Masked loss over batch sizes")
    for batch, scale in ((4, 1.0), (8, 1.9), (16, 3.7)):
        tail = f"-data.batch_size={batch}-precision=bf16"
        build.comparison["baseline"] = f"boolean_mask{tail}"
        syncs = iter((6, 4, 3, 0))
        for name, value, verdict in (
            ("boolean_mask", 1.0, "baseline"),
            ("where", 1.004, "same"),
            ("sort", 0.87, "slower"),
            ("ignore_index", 1.18, "faster"),
        ):
            medians = [12.4 * scale / value * wobble for wobble in (0.995, 1.0, 1.01)]
            build.add(
                f"{name}{tail}", medians, ratio=ratio(value, value * 0.995, value * 1.005, verdict),
                trace=traced(12 * scale, mask=0.4 * scale),
                syncs={"predicted_per_step": next(syncs)},
                entry=name, cell={"data.batch_size": str(batch), "precision": "bf16"},
            )  # fmt: skip
    return build.write()


def single_run_study(results: Path) -> Path:
    """One run a variant: step times, but no interval and no verdict."""
    build = StudyBuilder(results, study="single")
    build.add("boolean_mask", [12.4], ratio=BASE)
    build.add("ignore_index", [10.5], ratio=ratio(1.181, None, None, None))
    return build.write()


def all_failed_study(results: Path) -> Path:
    """Every variant failed: no environment, nothing measured."""
    build = StudyBuilder(results, study="all_failed", environment=None)
    for name in ("boolean_mask", "where"):
        build.fail(name, "failed", {"error": "ModuleNotFoundError: No module named 'mylosses'", "log_tail": ["boom"]})
    return build.write()


STUDIES: dict[str, Callable[[Path], Path]] = {
    "cpu": cpu_study,
    "gpu": gpu_study,
    "broken": broken_study,
    "matrix": matrix_study,
    "single": single_run_study,
    "all_failed": all_failed_study,
}


@pytest.fixture
def make_study(tmp_path: Path) -> Callable[[str], Path]:
    """Writes one of STUDIES under a fresh folder and returns its comparison.json."""
    return lambda name: STUDIES[name](tmp_path / name / "results")


@pytest.fixture
def study_builder(tmp_path: Path) -> StudyBuilder:
    """A study without variants yet."""
    return StudyBuilder(tmp_path / "results")


@pytest.fixture(scope="session")
def pages(once: Callable[[str, Callable[[Path], None]], Path]) -> dict[str, Path]:
    """Every kind of page, made once.

    `study` has failures, `gpu` a trace view and ratios to other baselines, `matrix` many variants; `cpu_trace` is what
    `steptrace run` writes without a GPU.
    """
    return _pages_in(once("pages", _write_pages))


def _pages_in(folder: Path) -> dict[str, Path]:
    names = ("study", "gpu", "cpu", "matrix", "index", "trace", "cpu_trace", "results", "diff")
    return {name: folder / f"{name}.html" for name in names}


def _write_pages(folder: Path) -> None:
    made = _pages_in(folder)
    summaries = {name: summarize([file])[0] for name, file in _traces(folder).items()}
    summary = write(folder / "results" / "traces" / "mine" / "summary.json", summaries["trace"])
    studies = {"study": broken_study, "gpu": gpu_study, "cpu": cpu_study, "matrix": matrix_study}
    comparisons = {name: build(folder / name / "results") for name, build in studies.items()}
    write(comparisons["gpu"].parent / "boolean_mask" / "run0" / "summary.json", summaries["trace"])
    for name, comparison in comparisons.items():
        render_study(comparison, made[name])
    render_index([comparisons["study"]], made["index"], imported=[summary])
    trace_page.write(summaries["trace"], made["trace"])
    trace_page.write(summaries["cpu_trace"], made["cpu_trace"])
    cpu, gpu = (read(comparisons[name], Comparison) for name in ("cpu", "gpu"))
    write_text(
        made["results"],
        results_page.page_html(compare_results([("cpu.json", cpu), ("gpu.json", gpu), ("again.json", cpu)])),
    )
    sides = read_sides([folder / "trace.json.gz"], [folder / "cpu_trace.json.gz"])
    write_text(made["diff"], diff_page.page_html(diff(*sides)))


def _traces(folder: Path) -> dict[str, Path]:
    whole = TraceBuilder()
    host_only = TraceBuilder()
    training_step(whole)
    host_only.step(1, 0, 900)
    host_only.op("aten::linear", 10, 400)
    host_only.op("aten::addmm", 20, 300)
    return {"trace": whole.write(folder / "trace.json.gz"), "cpu_trace": host_only.write(folder / "cpu_trace.json.gz")}


CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A Chromium, without a network."""
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine: looked for chromium, chromium-browser and google-chrome")
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def tab_with(browser: Any) -> Callable[..., Any]:
    """A tab in a context with these options, the same for the same ones: a new one takes 0.2 s of processor time."""
    return functools.cache(lambda **options: browser.new_context(**options).new_page())


@pytest.fixture
def visit(tab_with: Callable[..., Any]) -> Iterator[Callable[..., tuple[Any, list[str], list[str]]]]:
    """Opens a page: the tab, what its console said, and what it asked for besides itself; both lists grow later on.

    What an earlier visit showed is gone then, as the tab is the same.
    """
    heard: list[tuple[Any, str, Callable[[Any], None]]] = []

    def leave() -> None:
        while heard:
            tab, event, note = heard.pop()
            tab.remove_listener(event, note)

    def opened(
        path: Path, width: int, scheme: str = "light", place: str = "", **options: Any
    ) -> tuple[Any, list[str], list[str]]:
        leave()
        tab = tab_with(**options)
        tab.goto("about:blank")
        tab.mouse.move(0, 0)
        tab.set_viewport_size({"width": width, "height": 900})
        tab.emulate_media(color_scheme=scheme)
        messages: list[str] = []
        requests: list[str] = []
        own = path.as_uri() + place
        own_addresses = (own, path.as_uri(), "data:,")
        for event, note in (
            ("console", lambda message: messages.append(message.text)),
            ("pageerror", lambda error: messages.append(str(error))),
            ("request", lambda request: request.url in own_addresses or requests.append(request.url)),
        ):
            tab.on(event, note)
            heard.append((tab, event, note))
        tab.goto(own)
        return tab, messages, requests

    yield opened
    leave()
