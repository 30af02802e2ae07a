"""docs/gpu-results.md: the folders of reports/reference as tables, beside what the two articles report."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from steptrace.errors import RecordError
from steptrace.files import read_json
from steptrace.report import format as fmt

Json = Mapping[str, Any]

_HEAD: Final = """# Results on GPUs

Made by `make gpu-results` of the folders of `reports/reference`, which `make gpu-evidence` collects; nothing here is
typed by hand. Steps are unprofiled unless a column says otherwise; a gain is the baseline's step over the variant's.
Intervals are of 95 % over runs. `docs/metrics.md` and the pages in those folders say what the figures mean.
"""
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
    where = read_json(folder / "environment.json")
    studies = {file.parent.name: read_json(file) for file in sorted(folder.glob("*/comparison.json"))}
    bench = {file.stem: read_json(file) for file in sorted((folder / "bench").glob("*.json"))}
    yield f"## {where.get('gpu') or where.get('cpu')}\n"
    if not where.get("gpu") or "stand-in" in where["gpu"]:
        yield "> **Not a GPU's results**, but of a rehearsal without one, which only shows that the tables are made.\n"
    facts = ("torch", "cuda", "driver", "python", "cpu", "git_commit")
    yield ", ".join(f"{name} {where[name]}" for name in facts if where.get(name) is not None) + ".\n"
    yield (folder / "left_out.txt").read_text(encoding="utf-8") if (folder / "left_out.txt").is_file() else ""
    yield "### Beside the articles\n\n" + _table("study variant what article here", _beside_articles(studies))
    for name, study in studies.items():
        part = study.get("partial")
        note = f"Partial: {part['runs']} of {part['planned']} runs.\n\n" if part else ""
        yield f"### Study {name}\n\n{note}" + _table(_STUDY_HEAD, map(_variant, study["variants"]))
    yield "### Where predicted and traced syncs differ\n\n" + _table(
        "study variant place predicted warned traced why",
        [
            [name, v["name"], f"{p['file']}:{p['line']}", *(p[k] for k in ("predicted", "warned", "traced")), p["why"]]
            for name, study in studies.items()
            for v in study["variants"]
            for p in v.get("sync_agreement") or ()
            if p["why"]
        ],
    )
    loss = [row for name, b in bench.items() if name.startswith("giou") for row in _loss_rows(b)]
    yield "### The loss by itself\n\nAsked of `fused`: at 1,024 x 256 ten times as fast as `padding` and 1.5 times as "
    yield "`compiled`, at most twice its floor; at 65,536 x 256 at least 70 % of the copy bandwidth.\n"
    yield _table(_LOSS_HEAD, loss)
    for name, other in ((name, b) for name, b in bench.items() if not name.startswith("giou")):
        rows = other.get("rows") or [other]
        yield f"### {name}\n\n" + _table("|".join(rows[0]), [list(row.values()) for row in rows])


_STUDY_HEAD: Final = (
    "variant|step|gain|verdict|predicted|warned|traced|GPU busy|NVML|profiled step|step without syncs, predicted"
    "|error of that|peak memory|synchronised loss|answer|error of loss|of gradient|allowed"
)
_LOSS_HEAD: Final = (
    "numbers|cold|boxes|mode|implementation|call|in a graph|padding / this|compiled / this|graph / floor|of copy"
)


def _variant(v: Json) -> list[object]:
    step, ratio, syncs, whatif, found = (v.get(k) or {} for k in ("step_ms", "ratio", "syncs", "whatif", "equivalence"))
    interval = ratio.get("low"), ratio.get("high")
    return [
        *(v["name"], fmt.step_time(step.get("median"), step.get("low"), step.get("high"))[0]),
        f"{fmt.ratio(ratio.get('value'), *interval)} ({fmt.ratio_interval(*interval)})",
        ratio.get("verdict"),
        *(syncs.get(f"{count}_per_step") for count in ("predicted", "warned", "measured")),
        *(fmt.percent(v.get("gpu_busy_pct")), fmt.percent(v.get("nvml_util_pct")), fmt.duration_ms(_profiled(v))),
        fmt.duration_ms(whatif.get("predicted_ms")),
        fmt.share(whatif["error"]) if whatif.get("error") is not None else whatif.get("reason"),
        *(
            fmt.size_bytes(v.get("peak_allocated_bytes")),
            fmt.duration_ms(_section(v, "calc loss")),
            found.get("status"),
        ),
        *map(fmt.relative_error, (found.get("loss_rel_err"), found.get("gradient_rel_err"))),
        fmt.relative_error((found.get("tolerance") or {}).get("gradient")),
    ]


def _beside_articles(studies: Mapping[str, Json]) -> Iterator[list[object]]:
    for study, variants in ARTICLES.items():
        here = {v["name"]: v for v in studies.get(study, {}).get("variants", ())}
        for name, figures in variants.items():
            for what, there in figures.items() if name in here else ():
                v = here[name]
                own = {"step": (v.get("step_ms") or {}).get("median"), "step, profiled": _profiled(v)}
                yield [study, name, what, fmt.duration_ms(there), fmt.duration_ms(own.get(what, _section(v, what)))]


def _loss_rows(bench: Json) -> Iterator[list[object]]:
    copy = bench.get("copy_gb_s")
    for row in bench["rows"]:
        same = {
            r["implementation"]: r for r in bench["rows"] if all(r[k] == row[k] for k in ("batch", "boxes", "mode"))
        }
        graph, moved = row.get("graph_us"), row["bytes_moved"]
        floor = row["empty_graph_us"] + moved / copy / 1e3 if copy and row.get("empty_graph_us") else None
        over = [same[o]["us"] / row["us"] if o in same else None for o in ("padding", "compiled")]
        yield [
            *(f"{bench['predictions']}, {bench['targets']}", "yes" if bench.get("cold") else "no"),
            *(
                f"{row['batch']:,} x {row['boxes']}",
                row["mode"],
                row["implementation"],
                fmt.duration_ns(row["us"] * 1e3),
            ),
            fmt.duration_ns(graph * 1e3) if graph else row.get("graph_error"),
            *map(fmt.multiple, (*over, graph / floor if graph and floor else None)),
            fmt.percent(100 * moved / ((graph or row["us"]) * 1e3) / copy if copy else None),
        ]


def _profiled(v: Json) -> float | None:
    median, ratio = (v.get("step_ms") or {}).get("median"), v.get("profiled_over_unprofiled")
    return None if median is None or ratio is None else float(median) * float(ratio)


def _section(v: Json, name: str) -> float | None:
    return (v.get("synchronised_sections_ms") or {}).get(name)


def _table(head: str, rows: Iterable[Sequence[object]]) -> str:
    names = head.split("|") if "|" in head else head.split()
    lines = [[fmt.NOT_MEASURED if c is None else str(c).replace("|", "/") for c in row] for row in rows]
    body = [names, ["---"] * len(names), *lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in body) if lines else "Nothing.\n"
