"""The section "Provenance" of a study's page: environment, runs, digests, and how to make it all again."""

import shlex
from pathlib import Path
from typing import Final

from msgspec.structs import asdict

from steptrace import format as fmt
from steptrace.documents.comparison import Comparison, RunResult, VariantResult
from steptrace.report.page.markup import Html, breakable, render
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


def provenance(study: Comparison, comparison: Path | str) -> Html:
    """Environment, runs, digests, and the exact commands that make this again."""
    facts = {} if study.environment is None else asdict(study.environment)
    environment = [
        (environment_name(key), _environment_value(key, value), key in study.environments_differ)
        for key, value in facts.items()
        if facts["gpu"] is not None or key not in _OF_A_GPU
    ]
    in_checkout = _in_checkout(Path(comparison))
    rows = [
        (breakable(variant.name), *_run(run))
        for number, variant in enumerate(study.variants)
        for run in variant.runs
        if number < MOST_LISTED or run.status != "ok"
    ]
    return render(
        "study/provenance",
        study=study,
        environment=environment,
        runs=text_table(_RUN, rows),
        left_out=sum(len(variant.runs) for variant in study.variants) - len(rows),
        in_checkout=in_checkout,
        study_command=study_command(study, in_checkout=in_checkout),
        settings=text_table(
            ("Variant", "Overrides", "Digest", "Seeds", "One run of it"),
            [_settings(study, variant, Path(comparison)) for variant in study.variants],
        ),
    )


_RUN: Final = ("Variant", "Run", "Status", "Seed", "Median", "p95", "Steps", "Timed steps left out as warm-up")


def _run(run: RunResult) -> tuple[str, ...]:
    status = "out of memory" if run.status == "oom" else run.status
    seed = "unknown" if run.seed is None else str(run.seed)
    times = fmt.duration_ms(run.median_ms), fmt.duration_ms(run.p95_ms)
    return str(run.repeat), status, seed, *times, fmt.count(run.steps), fmt.count(run.warmup_left_out)


def _settings(study: Comparison, variant: VariantResult, comparison: Path) -> tuple[str, ...]:
    seeds = dict.fromkeys(str(run.seed) for run in variant.runs if run.seed is not None)
    command = variant_command(study, variant, of_program=_is_program(comparison, variant.name))
    return (
        breakable(variant.name),
        breakable(", ".join(variant.overrides)) or "none",
        (variant.digest or "unknown")[:12],
        ", ".join(seeds) or "unknown",
        Html('<code class="line">{}</code>').format(command),
    )


def _environment_value(key: str, value: object) -> str | None:
    if key.endswith("_bytes") and isinstance(value, int | float):
        return fmt.size_bytes(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return None if value is None else str(value)


def study_command(study: Comparison, *, in_checkout: bool) -> str:
    """The command that makes the study again, with as many repeats as it had.

    Where results lie outside of a checkout, as with --directory, the Snakefile has to be named: by a word, since where
    things lie on this machine is nobody's business.
    """
    snakefile = "" if in_checkout else " --snakefile STEPTRACE/Snakefile"
    config = [f"'studies=[{study.study}]'", f"scale={study.scale}"]
    if repeats := max((len(variant.runs) for variant in study.variants), default=0):
        config.append(f"repeats={repeats}")
    return f"snakemake{snakefile} --cores all --config {' '.join(config)}"


def _in_checkout(comparison: Path) -> bool:
    """Whether results/ lies in a checkout, as far as the comparison's place shows."""
    parents = comparison.resolve().parents
    return len(parents) <= 2 or (parents[2] / "Snakefile").is_file()


def _is_program(comparison: Path, variant: str) -> bool:
    """Whether the variant is a command, as its configuration says."""
    config = comparison.with_name(variant) / "config.yaml"
    return config.is_file() and "\nprogram:" in config.read_text(encoding="utf-8")


def variant_command(study: Comparison, variant: VariantResult, *, of_program: bool = False) -> str:
    """The command that trains this variant once more, from the folder that holds results/."""
    folder = f"results/{study.study}/{variant.name}"
    path = next((run.path for run in variant.runs), None)
    if path is not None:
        folder = str(Path(path).parent)
    config, out = shlex.quote(f"{folder}/config.yaml"), shlex.quote(f"out/{variant.name}")
    module = "steptrace.launch.main measure --config" if of_program else "steptrace.train"
    return f"python -m {module} {config} --out {out} --repeat 0"


def environment_name(key: str) -> str:
    """A key of the environment as a page says it."""
    return _ENVIRONMENT_NAMES.get(key, key.replace("_", " ").capitalize())
