"""docs/gpu-results.md: the folders of reports/reference as tables, beside what the two articles report."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from steptrace import format as fmt
from steptrace.documents.base import read
from steptrace.documents.comparison import Comparison, VariantResult
from steptrace.documents.run import Environment, is_simulated
from steptrace.errors import RecordError
from steptrace.files import read_json
from steptrace.markdown import table

#: What a benchmark wrote.
Bench = Mapping[str, Any]

_HEAD: Final = """# Results on GPUs

Made by `make gpu-results` of the folders of `reports/reference`, which `make gpu-evidence` collects; nothing here is
typed by hand. Steps are unprofiled unless a column says otherwise; a gain is the baseline's step over the variant's.
Intervals are of 95 % over runs. `docs/metrics.md` and the pages in those folders say what the figures mean.
"""
_AGAIN: Final = "collect it again: make gpu-evidence"
#: study -> variant -> what -> milliseconds there. Masked loss: August 2023, A10G, PyTorch 2.0, profiled steps as the
#: host sees them. GIoU: August 2024, L4, PyTorch 2.4, sections with a synchronisation after each.
ARTICLES: Final[dict[str, dict[str, dict[str, float]]]] = {
    "masked_loss": {
        "boolean_mask": {"step, profiled": 1300.0},
        "ignore_index": {"step, profiled": 5.4, "step": 330.0},
    },
    "giou": {
        "loop": {"copy data": 28.8, "forward": 119.2, "calc loss": 938.1},
        "concat": {"copy data": 52.2, "forward": 118.7, "calc loss": 25.4},
        "padding": {"copy data": 5.71, "forward": 131.5, "calc loss": 1.84},
        "kernel": {"copy data": 5.69, "forward": 132.7, "calc loss": 0.629},
        "kernel_conditional": {"copy data": 5.70, "forward": 131.9, "calc loss": 0.623},
    },
}


def render(folders: Sequence[Path]) -> str:
    """The page, as Markdown, of one or more machines; `RecordError` if a folder is none that `collect` made."""
    return "\n".join([_HEAD, *(part for folder in folders for part in _machine(folder))])


def _machine(folder: Path) -> Iterator[str]:
    if not (folder / "environment.json").is_file():
        raise RecordError("no collected results", where=folder, expected="a folder with environment.json")
    where = read(folder / "environment.json", Environment, next_step=_AGAIN)
    studies = {f.parent.name: read(f, Comparison, next_step=_AGAIN) for f in sorted(folder.glob("*/comparison.json"))}
    bench = {file.stem: read_json(file) for file in sorted((folder / "bench").glob("*.json"))}
    yield f"## {where.gpu or where.cpu}\n"
    if not where.gpu or is_simulated(where.gpu):
        yield "> **Not a GPU's results**, but of a rehearsal without one, which only shows that the tables are made.\n"
    facts = ("torch", "cuda", "driver", "python", "cpu", "git_commit")
    known = msgspec.to_builtins(where)
    yield ", ".join(f"{name} {known[name]}" for name in facts if known[name] is not None) + ".\n"
    yield (folder / "left_out.txt").read_text(encoding="utf-8") if (folder / "left_out.txt").is_file() else ""
    yield "### Beside the articles\n\n" + _table("study variant what article here", _beside_articles(studies))
    for name, study in studies.items():
        part = study.partial
        note = f"Partial: {part.runs} of {part.planned} runs.\n\n" if part else ""
        yield f"### Study {name}\n\n{note}" + _table(_STUDY_HEAD, map(_variant, study.variants))
    yield "### Where predicted and traced syncs differ\n\n" + _table(
        "study variant place predicted warned traced why",
        [
            [name, v.name, f"{p.file}:{p.line}", *map(_count, (p.predicted, p.warned, p.traced)), p.why]
            for name, study in studies.items()
            for v in study.variants
            for p in v.sync_agreement
            if p.why
        ],
    )
    loss = [row for name, b in bench.items() if name.startswith("giou") for row in _loss_rows(b)]
    yield "### The loss by itself\n\nAsked of `fused`: at 1,024 x 256 ten times as fast as `padding` and 1.5 times as "
    yield "`compiled`, at most 1.5 times its floor; at 65,536 x 256 at least 70 % of the copy bandwidth.\n"
    yield _table(_LOSS_HEAD, loss)
    yield "".join(f"\nNot measured: {gap}\n" for name, b in bench.items() for gap in _gaps(name, b))
    for name, other in ((name, b) for name, b in bench.items() if not name.startswith("giou")):
        rows = other.get("rows") or [other]
        yield f"### {name}\n\n" + _table("|".join(rows[0]), [list(row.values()) for row in rows])


def _gaps(name: str, bench: Bench) -> Iterator[str]:
    """What a benchmark could not measure: implementations that failed, and the rest of one that was cut off."""
    for failure in bench.get("failures", ()):
        yield f"{name}, {failure['implementation']}: {failure['message']}"
    if not bench.get("complete", True):
        yield f"{name}: cut off before its last size"


_STUDY_HEAD: Final = (
    "variant|step|gain|verdict|predicted|warned|traced|GPU busy|NVML|profiled step|step without syncs, predicted"
    "|error of that|peak memory|synchronised loss|answer|error of loss|of gradient|allowed"
)
_LOSS_HEAD: Final = (
    "numbers|cold|boxes|mode|implementation|call|in a graph|padding / this|compiled / this|graph / floor|of copy"
)


def _variant(v: VariantResult) -> list[object]:
    step, ratio, whatif, found = v.step_ms, v.ratio, v.whatif, v.equivalence
    interval = (None, None) if ratio is None else (ratio.low, ratio.high)
    error = None if whatif is None else whatif.error
    return [
        v.name,
        fmt.step_time(*((None, None, None) if step is None else (step.median, step.low, step.high)))[0],
        f"{fmt.ratio(None if ratio is None else ratio.value, *interval)} ({fmt.ratio_interval(*interval)})",
        None if ratio is None else ratio.verdict,
        *map(_count, (v.syncs.predicted_per_step, v.syncs.warned_per_step, v.syncs.measured_per_step)),
        *(fmt.percent(v.gpu_busy_pct), fmt.percent(v.nvml_util_pct), fmt.duration_ms(_profiled(v))),
        fmt.duration_ms(None if whatif is None else whatif.predicted_ms),
        fmt.share(error) if error is not None else None if whatif is None else whatif.reason,
        *(fmt.size_bytes(v.peak_allocated_bytes), fmt.duration_ms(_section(v, "calc loss")), found.status),
        *map(fmt.relative_error, (found.loss_rel_err, found.gradient_rel_err)),
        fmt.relative_error(None if found.tolerance is None else found.tolerance.gradient),
    ]


def _beside_articles(studies: Mapping[str, Comparison]) -> Iterator[list[object]]:
    for study, variants in ARTICLES.items():
        here = {v.name: v for v in studies[study].variants} if study in studies else {}
        for name, figures in variants.items():
            for what, there in figures.items() if name in here else ():
                v = here[name]
                own = {"step": v.median_ms, "step, profiled": _profiled(v)}
                yield [study, name, what, fmt.duration_ms(there), fmt.duration_ms(own.get(what, _section(v, what)))]


def _loss_rows(bench: Bench) -> Iterator[list[object]]:
    copy = bench.get("copy_gb_s")
    for row in bench["rows"]:
        alike = [r for r in bench["rows"] if all(r[k] == row[k] for k in ("batch", "boxes", "mode"))]
        same = {r["implementation"]: r for r in alike}
        graph, moved = row.get("graph_us"), row["bytes_moved"]
        floor = row["empty_graph_us"] + moved / copy / 1e3 if copy and row.get("empty_graph_us") else None
        over = [same[o]["us"] / row["us"] if o in same else None for o in ("padding", "compiled")]
        yield [
            *(f"{bench['predictions']}, {bench['targets']}", "yes" if bench.get("cold") else "no"),
            *(f"{row['batch']:,} x {row['boxes']}", row["mode"], row["implementation"]),
            fmt.duration_ns(row["us"] * 1e3),
            fmt.duration_ns(graph * 1e3) if graph else row.get("graph_error"),
            *map(fmt.multiple, (*over, graph / floor if graph and floor else None)),
            fmt.percent(100 * moved / ((graph or row["us"]) * 1e3) / copy if copy else None),
        ]


def _profiled(v: VariantResult) -> float | None:
    ratio = v.profiled_over_unprofiled
    return None if v.step_ms is None or ratio is None else v.step_ms.median * ratio


def _section(v: VariantResult, name: str) -> float | None:
    return (v.synchronised_sections_ms or {}).get(name)


def _count(value: float | None) -> str | None:
    return None if value is None else f"{value:g}"


def _table(head: str, rows: Iterable[Sequence[object]]) -> str:
    return table(head.split("|") if "|" in head else head.split(), rows)
