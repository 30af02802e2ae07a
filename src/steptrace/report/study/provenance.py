"""Where a study's figures come from: environment, runs, digests, how to make it all again, how it was compared."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from msgspec.structs import asdict

from steptrace import format as fmt
from steptrace.documents.comparison import Comparison
from steptrace.documents.run import RunResult
from steptrace.documents.step_times import Statistic
from steptrace.report.page.markup import Html, badge, breakable, render
from steptrace.report.page.rows import facts, named_facts
from steptrace.report.page.table import text_table

_ENVIRONMENT_NAMES = {
    "cpu": "CPU",
    "cpu_count": "CPU cores",
    "memory_bytes": "Memory",
    "gpu": "GPU",
    "gpu_count": "GPUs",
    "gpu_memory_bytes": "GPU memory",
    "cuda": "CUDA",
    "os": "Operating system",
    "torch": "PyTorch",
    "steptrace": "steptrace's version",
    "git_commit": "Measured code's commit",
    "git_dirty": "Measured code's uncommitted changes",
}
#: Facts that say nothing on a machine without a GPU.
_OF_A_GPU = ("gpu_count", "gpu_memory_bytes", "driver", "cuda")
#: Runs of more variants than this are listed only where they failed.
MOST_LISTED = 40


def provenance(study: Comparison, _comparison: Path | str) -> Html:
    """Environment, runs, digests, and the exact commands that make this again."""
    recorded = {} if study.environment is None else asdict(study.environment)
    environment = [
        (
            _named(study, key),
            Html(" or ").join(_value(key, each_value) for each_value in study.environments_differ.get(key, (value,))),
        )
        for key, value in recorded.items()
        if recorded["gpu"] is not None or key not in _OF_A_GPU
    ]
    begun = sorted(run.started_at for variant in study.variants for run in variant.runs if run.started_at)
    rows = [
        (breakable(variant.name), *_run(run, study.statistic, begun))
        for number, variant in enumerate(study.variants)
        for run in variant.runs
        if number < MOST_LISTED or run.status != "ok"
    ]
    return render(
        "study/provenance",
        study=study.study,
        code=_measured_code(study),
        environment=named_facts(environment) if environment else "",
        runs=text_table((*_RUN, study.statistic.capitalize(), *_STEPS), rows),
        left_out=sum(len(variant.runs) for variant in study.variants) - len(rows),
        study_command=_study_command(study),
        settings=text_table(
            ("Variant", "Overrides", "Digest"),
            [
                (
                    breakable(variant.name),
                    breakable(", ".join(variant.overrides)) or "none",
                    (variant.digest or "unknown")[:12],
                )
                for variant in study.variants
            ],
        ),
        run_command=_run_command(study),
    )


_RUN: Final = ("Variant", "Run", "Order", "Status", "Seed")
_STEPS: Final = ("p95", "Steps", "Timed steps left out as warm-up")


def _run(run: RunResult, statistic: Statistic, begun: Sequence[str]) -> tuple[str, ...]:
    """The cells of a run; `begun` is when each run of the study started, in order."""
    order = "unknown" if run.started_at is None else str(begun.index(run.started_at) + 1)
    seed = "unknown" if run.seed is None else str(run.seed)
    times = fmt.duration_ms(run.mean_ms if statistic == "mean" else run.median_ms), fmt.duration_ms(run.p95_ms)
    return str(run.repeat), order, run.status, seed, *times, fmt.count(run.steps), fmt.count(run.warmup_left_out)


def _named(study: Comparison, key: str) -> Html:
    """A key of the environment, and whether runs differ in it."""
    name = Html("{}").format(_ENVIRONMENT_NAMES.get(key, key.replace("_", " ").capitalize()))
    return name + Html(" ") + badge("differs between runs", "bad") if key in study.environments_differ else name


def _value(key: str, value: object) -> str:
    if value is None:
        return Html('<span class="null">{}</span>').format("none" if key == "gpu" else "unknown")
    if key.endswith("_bytes") and isinstance(value, int | float):
        return fmt.size_bytes(value)
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def _measured_code(study: Comparison) -> str:
    """Which code was measured, in a sentence; empty where no run recorded it."""
    environment = study.environment
    if environment is None or environment.git_commit is None:
        return ""
    changes = " (which had uncommitted changes when this ran)" if environment.git_dirty else ""
    code = f"the code at commit `{environment.git_commit}`{changes}"
    return f"It was measured with steptrace {environment.steptrace} and {code}."


def _study_command(study: Comparison) -> str:
    """The command that makes the study again, with as many repeats as it had."""
    config = [f"'studies=[{study.study}]'", f"scale={study.scale}"]
    if repeats := max((len(variant.runs) for variant in study.variants), default=0):
        config.append(f"repeats={repeats}")
    return f"snakemake --cores all --config {' '.join(config)}"


def _run_command(study: Comparison) -> str:
    """The command that trains one variant once more, from the folder that holds results/."""
    config = f"results/{study.study}/VARIANT/config.yaml"
    return f"python -m steptrace.jobs.supervise --out out/VARIANT --variant {config} --repeat 0"


def method(study: Comparison) -> Html:
    """How the comparison was made."""
    method_facts = facts(study.method)
    return Html(method_facts.html + render("study/tables", lead="", tables=[], meanings=method_facts.meanings))
