"""A study with GPU traces made by hand, from the traces to comparison.json and its findings."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from builders import TraceBuilder
from documents import compare
from simulated import Program, simulate, time_of, without
from steptrace.analysis import summarize
from steptrace.documents.paths import check_key
from steptrace.errors import ConfigError

US = 1_000
STEPS = 3
BASE: Program = [("kernel", 3_000 * US), ("item", 10), ("item", 20), ("python", 900 * US), ("kernel", 1_000 * US)]
ONE_LESS = without(BASE, 10)
NONE = without(ONE_LESS, 20)
MS = 1e6


def add_variant(folder: Any, name: str, program: Program, *, wobble: float = 0.001) -> None:
    """Three runs whose unprofiled step is the simulated one, each with the trace, its summary and its tables."""
    simulated_ms = time_of(program, STEPS) / STEPS / MS
    steps_ms = [simulated_ms * (1 + wobble * (repeat - 1)) for repeat in range(3)]
    runs = [
        Path(folder.add_run(name, repeat, [ms] * 20, profiled_ms=[ms] * STEPS)) for repeat, ms in enumerate(steps_ms)
    ]
    trace = simulate(program, STEPS).write(runs[0] / "trace.json.gz")
    summary, _ = summarize([trace], tables=runs[0] / "tables")
    for run in runs:
        if run != runs[0]:
            shutil.copy(trace, run)
            shutil.copytree(runs[0] / "tables", run / "tables")
        folder.add_summary(run, summary)


@pytest.fixture(scope="module")
def variants(folder_at: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = folder_at(tmp_path_factory.mktemp("results") / "s")
    folder.make_study([{"name": name} for name in ("base", "one_less", "none")])
    for name, program in (("base", BASE), ("one_less", ONE_LESS), ("none", NONE)):
        add_variant(folder, name, program)
    comparison = compare(folder.path)
    return {"comparison": comparison} | {variant["name"]: variant for variant in comparison["variants"]}


def test_every_site_has_its_upper_bound(variants: dict[str, Any]) -> None:
    sites = {site["line"]: site for site in variants["base"]["trace"]["syncs"]["sites"]}
    assert {line: site["count_per_step"] for line, site in sites.items()} == {10: 1, 20: 1}
    assert sites[10]["blocked_ns"] / STEPS > 2_900 * US
    assert sites[20]["exposed_idle_ns"] / STEPS > 900 * US
    assert all(site["ceiling_ns"] / STEPS < 30 * US for site in sites.values())  # one alone would move to the other
    really = (time_of(BASE, STEPS) - time_of(NONE, STEPS)) / STEPS
    assert variants["base"]["trace"]["syncs"]["ceiling_ns"] / STEPS >= really


def test_the_sync_diff_says_what_went_and_what_took_over_its_wait(variants: dict[str, Any]) -> None:
    diff = variants["one_less"]["sync_diff"]
    assert diff["basis"] == "measured"
    gone, kept = diff["sites"]
    assert (gone["line"], gone["baseline_count_per_step"], gone["variant_count_per_step"]) == (10, 1, 0)
    assert (kept["line"], kept["baseline_count_per_step"], kept["variant_count_per_step"]) == (20, 1, 1)
    (before,) = [s for s in variants["base"]["trace"]["syncs"]["sites"] if s["line"] == 20]
    (after,) = variants["one_less"]["trace"]["syncs"]["sites"]
    assert before["blocked_ns"] / STEPS < 30 * US
    assert after["blocked_ns"] / STEPS > 2_900 * US


def test_a_trace_without_gpu_work_is_divided_by_the_hosts_sections(folder: Any) -> None:
    folder.make_study([{"name": "base"}, {"name": "other"}])
    for name, forward_us in (("base", 600), ("other", 200)):
        for repeat in range(2):
            builder = TraceBuilder()
            builder.step(0, 0, (forward_us + 300) * US)
            builder.op("aten::mm", 0, 10)
            builder.label("forward", 0, forward_us * US)
            builder.label("backward", forward_us * US, 250 * US)
            run_dir = Path(folder.add_run(name, repeat, [(forward_us + 290) / 1e3] * 10))
            folder.add_summary(run_dir, summarize([builder.write(run_dir / "trace.json.gz")])[0])
    base, other = compare(folder.path)["variants"]
    parts, before = (item["trace"]["overview"]["parts_ns"] for item in (other, base))
    changed = {part: ns - before[part] for part, ns in parts.items()}
    assert changed == {"data": 0, "forward": -400 * US, "loss": 0, "backward": 0, "optimizer": 0, "other": 0}
    assert other["sync_diff"] is None


def test_gates_know_the_figures_of_a_variant(variants: dict[str, Any]) -> None:
    """Every number and outcome that stands in a variant can be a gate's key, but the number of the GPU."""

    def figures(node: Any, path: str = "") -> Any:
        for name, value in node.items():
            key = f"{path}{name}"
            if isinstance(value, dict):
                yield from figures(value, f"{key}.")
            elif isinstance(value, int | float) and not isinstance(value, bool):
                yield key

    for variant in variants["comparison"]["variants"]:
        keys = [key for key in figures(variant) if key != "trace.device"]
        assert len(keys) > 40
        for key in keys:
            check_key(key)
    with pytest.raises(ConfigError):
        check_key("step_ms.medium")
