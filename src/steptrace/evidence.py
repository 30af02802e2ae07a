"""A node's small results, gathered into one folder that can be committed: `reports/reference/<gpu>/`.

comparison.json of every study, summary.json of every variant's first run, the pages (their figures are inside),
a trace excerpt per variant, what the tests printed, what the benchmarks wrote, environment.json, and a README with
date, machine, versions, command and the main figures.
"""

import json
import re
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from steptrace.errors import RecordError, TraceError
from steptrace.evidence_plan import FIRST
from steptrace.record import read_json, write_json
from steptrace.report import format as fmt
from steptrace.trace.excerpt import Wanted, write_excerpt

MAX_BYTES: Final = 5_000_000
#: The largest excerpt of one variant's trace: a few milliseconds, and thirty of them fit beside the rest.
EXCERPT_BYTES: Final = 90_000
#: Where a node's tests and benchmarks write to, below results/, and what says there which machine it is.
EVIDENCE_FOLDER: Final = "evidence"
ENVIRONMENT_FILE: Final = "environment.json"
MACHINE_FILE: Final = "machine.json"
LEFT_OUT_FILE: Final = "left_out.txt"
BENCH_FOLDER: Final = "bench"
#: The end of each log, in lines, and the room for the README.
LOG_LINES: Final = 200
README_BYTES: Final = 50_000
#: Words of a GPU's name that do not tell it from another one.
_VENDOR: Final = {"nvidia", "amd", "geforce", "tesla", "instinct", "graphics", "sxm", "pcie", "hbm3", "hbm3e"}


def collect(work: Path, *, scale: str, out: Path, command: str, commit: str = "unknown") -> Path:
    """Gather what the studies of `scale` left in the working directory `work`; return the folder made below `out`.

    Without any study, as after a call that was cut off, it is what the tests and benchmarks left. An earlier folder of
    the same machine is replaced once the new one is complete. If it would be over 5 MB, files are left out, of the
    studies that others refer to last and the largest first: excerpts, then pages, then summaries. The README says
    which.

    Args:
        command: what was called, for the README.
        commit: what it was called on, for the README.

    Raises:
        RecordError: there is nothing at this scale, or the folder is over 5 MB with comparisons and benchmarks alone.
    """
    logs = work / "results" / EVIDENCE_FOLDER
    comparisons = {path: read_json(path) for path in sorted(work.glob("results/*/comparison.json"))}
    comparisons = {path: study for path, study in comparisons.items() if study["scale"] == scale}
    if not comparisons and not (logs / MACHINE_FILE).is_file():
        raise RecordError(
            f"no study was compared at scale {scale}",
            where=work / "results",
            expected="results/<study>/comparison.json",
            next_step="run the studies first: STAGE=studies",
        )
    environment = _environment(list(comparisons.values()), logs / MACHINE_FILE)
    folder = out / machine_name(environment)
    fresh = folder.with_name(f".{folder.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    notes = []
    for path, study in comparisons.items():
        notes += _collect_study(path.parent, study, fresh, work / "reports")
        notes += _collect_excerpts(path.parent, study, fresh / "traces", logs / "excerpts")
    for file in [work / "reports" / "index.html", work / "results" / "verdict.json"]:
        if file.is_file():
            shutil.copyfile(file, fresh / file.name)
    if not comparisons:
        notes.append(f"no study was compared at scale {scale}")
    notes += _collect_logs(logs, fresh, work)
    write_json(fresh / ENVIRONMENT_FILE, environment)
    origin = f"by `{command}`, commit `{commit}`"
    notes += _fit(fresh)
    readme = _readme(environment, list(comparisons.values()), f"at scale `{scale}` {origin}", notes)
    (fresh / "README.md").write_text(readme, encoding="utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    return fresh.rename(folder)


def machine_name(environment: dict[str, Any]) -> str:
    """The folder's name: the GPU's without its vendor (`NVIDIA H200` is `h200`), `cpu` where there was none."""
    words = re.findall(r"[a-z0-9]+", (environment.get("gpu") or "cpu").lower())
    return "-".join([word for word in words if word not in _VENDOR] or words)


def _environment(studies: list[dict[str, Any]], machine: Path) -> dict[str, Any]:
    """Where the first study ran that knows it, else what `machine` says; empty if nothing does."""
    known: list[dict[str, Any]] = [study["environment"] for study in studies if study["environment"]]
    return known[0] if known else read_json(machine) if machine.is_file() else {}


def _collect_study(results: Path, study: dict[str, Any], fresh: Path, pages: Path) -> list[str]:
    """Copy a study's files into `fresh`; return what is missing, one sentence each."""
    name, notes = study["study"], []
    target = fresh / name
    target.mkdir()
    _write_compact(target / "comparison.json", study)
    page = pages / f"{name}.html"
    if page.is_file():
        shutil.copyfile(page, fresh / page.name)
    for variant in (entry["name"] for entry in study["variants"]):
        run = results / variant / "run0"
        if (run / "run.json").is_file():
            _write_compact(target / f"{variant}.summary.json", _without_picture(read_json(run / "summary.json")))
        else:
            notes.append(f"{name}/{variant}: run0 did not end well, so there is no summary and no excerpt")
    return notes


def _write_compact(path: Path, document: dict[str, Any]) -> None:
    """Write JSON on one line: half of sixty files that nobody reads from top to bottom would be indentation."""
    path.write_text(json.dumps(document, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")


def _without_picture(summary: dict[str, Any]) -> dict[str, Any]:
    """A summary without the boxes of its picture, which the study's page holds, and the excerpt that stays behind."""
    traces = [{key: value for key, value in t.items() if key != "timeline"} for t in summary.get("traces") or ()]
    return {key: traces if key == "traces" else v for key, v in summary.items() if key != "trace_excerpt"}


def _collect_excerpts(results: Path, study: dict[str, Any], target: Path, kept: Path) -> list[str]:
    """Copy an excerpt per variant into `target`; return what is missing.

    They are made in `kept`, each once as long as its trace is the same: results are collected after every study.
    """
    target.mkdir(exist_ok=True)
    kept.mkdir(parents=True, exist_ok=True)
    notes = []
    for variant in (entry["name"] for entry in study["variants"]):
        run = results / variant / "run0"
        trace, name = run / "trace.json.gz", f"{study['study']}.{variant}.pt.trace.json.gz"
        if not (run / "run.json").is_file():
            continue
        excerpt = kept / name
        try:
            if not excerpt.is_file() or excerpt.stat().st_mtime <= trace.stat().st_mtime:
                write_excerpt(trace, excerpt, Wanted(max_bytes=EXCERPT_BYTES))
            shutil.copyfile(excerpt, target / name)
        except (TraceError, OSError) as error:
            notes.append(f"{study['study']}/{variant}: no excerpt ({getattr(error, 'what', error)})")
    return notes


def _collect_logs(logs: Path, fresh: Path, work: Path) -> list[str]:
    """Copy the end of what the tests printed, without the place where the checkout lies, and the benchmarks' files.

    Returns:
        What could not be run, one sentence each.
    """
    for log in sorted(logs.glob("*.txt")):
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_LINES:]
        text = "\n".join(lines).replace(f"{work.resolve()}/", "")
        if lines:
            (fresh / log.name).write_text(text + "\n", encoding="utf-8")
    for figures in sorted(logs.glob("*.json")):
        if figures.name != MACHINE_FILE:
            (fresh / BENCH_FOLDER).mkdir(exist_ok=True)
            shutil.copyfile(figures, fresh / BENCH_FOLDER / figures.name)
    left_out = logs / LEFT_OUT_FILE
    return left_out.read_text(encoding="utf-8").splitlines() if left_out.is_file() else []


def _readme(environment: dict[str, Any], studies: list[dict[str, Any]], origin: str, notes: list[str]) -> str:
    facts = "\n".join(f"| {key} | {json.dumps(value, ensure_ascii=False)} |" for key, value in environment.items())
    missing = "".join(f"- {note}\n" for note in notes)
    return (
        f"# Reference results: {environment.get('gpu') or environment.get('cpu')}\n\n"
        f"Collected on {datetime.now(UTC):%Y-%m-%d} {origin}.\n"
        "Made by a program; nothing here is typed by hand.\n\n"
        "A study's folder holds its `comparison.json` and the first run's summary of every variant; the `.html` files\n"
        "are the pages, the `.txt` files what the tests printed, `bench/` what the benchmarks wrote. `traces/` holds\n"
        "a few milliseconds of the variants, for `steptrace analyze traces`.\n\n"
        + "\n".join(_table(study) for study in studies)
        + f"\n## Environment\n\n| | |\n|---|---|\n{facts}\n"
        + (f"\n## Missing\n\n{missing}" if missing else "")
    )


def _table(study: dict[str, Any]) -> str:
    """A study's main figures as Markdown."""
    head = "| variant | step | ratio | 95 % interval | verdict | syncs | warned of | predicted | GPU busy | answer |"
    rows = [f"## {study['study']}\n", head, "|---" * 10 + "|"]
    for variant in study["variants"]:
        step, ratio, syncs = (variant.get(key) or {} for key in ("step_ms", "ratio", "syncs"))
        interval = ratio.get("low"), ratio.get("high")
        cells = [
            variant["name"],
            fmt.duration_ms(step.get("median")),
            fmt.ratio(ratio.get("value"), *interval),
            fmt.ratio_interval(*interval),
            ratio.get("verdict") or "none",
            *(fmt.count(syncs.get(f"{count}_per_step")) for count in ("measured", "warned", "predicted")),
            fmt.percent(variant.get("gpu_busy_pct")),
            (variant.get("equivalence") or {}).get("status") or fmt.NOT_MEASURED,
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def _fit(folder: Path) -> list[str]:
    """Leave files out until the folder fits; return what was left out, one sentence each."""
    sizes = {file: file.stat().st_size for file in folder.rglob("*") if file.is_file()}
    order = {file: rank for file in sizes if (rank := _spare(file)) is not None}
    spare = sorted(order, key=lambda file: (-order[file], sizes[file]))
    notes = []
    # Some room is kept for the README, which is written last.
    while sum(sizes.values()) > MAX_BYTES - README_BYTES and spare:
        dropped = spare.pop()
        notes.append(f"{dropped.relative_to(folder)}: left out, its {sizes.pop(dropped):,} bytes are too many")
        dropped.unlink()
    if sum(sizes.values()) > MAX_BYTES - README_BYTES:
        largest = max(sizes, key=lambda file: sizes[file])
        raise RecordError(
            f"the results take {sum(sizes.values()):,} bytes; the largest is {largest.name} with {sizes[largest]:,}",
            where=folder,
            expected=f"at most {MAX_BYTES:,} bytes",
            next_step="narrow STUDIES",
        )
    return notes


def _spare(file: Path) -> int | None:
    """How soon a file gives way to others, 0 first; None if it never does.

    Excerpts go first, then pages, then summaries; what belongs to the studies that the others refer to goes after
    everything of the others.
    """
    for order, (belongs, study) in enumerate(
        (
            (file.parent.name == "traces", file.name.split(".")[0]),
            (file.suffix == ".html" and file.stem != "index", file.stem),
            (file.name.endswith(".summary.json"), file.parent.name),
        )
    ):
        if belongs:
            return order + (3 if study in FIRST else 0)
    return None
