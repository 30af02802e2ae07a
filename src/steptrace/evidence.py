"""A node's small results, gathered into one folder that can be committed: `reports/reference/<gpu>/`.

comparison.json of every study, summary.json of every variant's first run, the pages (their figures are inside),
a trace excerpt per variant, environment.json, and a README with date, machine, versions and command.
"""

import json
import re
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from steptrace.errors import RecordError, TraceError
from steptrace.record import read_json, write_json
from steptrace.trace.excerpt import Wanted, write_excerpt

MAX_BYTES: Final = 5_000_000
#: The largest excerpt of one variant's trace: a few milliseconds, and thirty of them fit beside the rest.
EXCERPT_BYTES: Final = 90_000
#: Words of a GPU's name that do not tell it from another one.
_VENDOR: Final = {"nvidia", "amd", "geforce", "tesla", "instinct", "graphics", "sxm", "pcie", "hbm3", "hbm3e"}


def collect(work: Path, *, scale: str, out: Path, command: str) -> Path:
    """Gather what the studies of `scale` left in the working directory `work`; return the folder made below `out`.

    An earlier folder of the same machine is replaced once the new one is complete.

    Raises:
        RecordError: no study was compared at this scale, or the folder would be over 5 MB.
    """
    comparisons = {path: read_json(path) for path in sorted(work.glob("results/*/comparison.json"))}
    comparisons = {path: study for path, study in comparisons.items() if study["scale"] == scale}
    if not comparisons:
        raise RecordError(
            f"no study was compared at scale {scale}",
            where=work / "results",
            expected="results/<study>/comparison.json",
            next_step="run the studies first: STAGE=studies",
        )
    environment: dict[str, Any] = next(
        (study["environment"] for study in comparisons.values() if study["environment"]), {}
    )
    folder = out / machine_name(environment)
    fresh = folder.with_name(f".{folder.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    notes = [note for path, study in comparisons.items() for note in _collect_study(path.parent, study, fresh, work)]
    write_json(fresh / "environment.json", environment)
    (fresh / "README.md").write_text(_readme(environment, list(comparisons.values()), command, notes), encoding="utf-8")
    _check_size(fresh)
    shutil.rmtree(folder, ignore_errors=True)
    return fresh.rename(folder)


def machine_name(environment: dict[str, Any]) -> str:
    """The folder's name: the GPU's without its vendor (`NVIDIA H200` is `h200`), `cpu` where there was none."""
    words = re.findall(r"[a-z0-9]+", (environment.get("gpu") or "cpu").lower())
    return "-".join([word for word in words if word not in _VENDOR] or words)


def _collect_study(results: Path, study: dict[str, Any], fresh: Path, work: Path) -> list[str]:
    """Copy a study's files into `fresh`; return what is missing, one sentence each."""
    name, notes = study["study"], []
    target = fresh / name
    target.mkdir()
    shutil.copyfile(results / "comparison.json", target / "comparison.json")
    page = work / "reports" / f"{name}.html"
    if page.is_file():
        shutil.copyfile(page, fresh / page.name)
    for variant in (entry["name"] for entry in study["variants"]):
        run = results / variant / "run0"
        if not (run / "run.json").is_file():
            notes.append(f"{name}/{variant}: run0 did not end well, so there is no summary and no excerpt")
            continue
        shutil.copyfile(run / "summary.json", target / f"{variant}.summary.json")
        trace = fresh / "traces" / f"{name}.{variant}.pt.trace.json.gz"
        trace.parent.mkdir(exist_ok=True)
        try:
            write_excerpt(run / "trace.json.gz", trace, Wanted(max_bytes=EXCERPT_BYTES))
        except TraceError as error:
            notes.append(f"{name}/{variant}: no excerpt ({error.what})")
    return notes


def _readme(environment: dict[str, Any], studies: list[dict[str, Any]], command: str, notes: list[str]) -> str:
    facts = "\n".join(f"| {key} | {json.dumps(value, ensure_ascii=False)} |" for key, value in environment.items())
    names = ", ".join(f"`{study['study']}`" for study in studies)
    missing = "".join(f"- {note}\n" for note in notes)
    return (
        f"# Reference results: {environment.get('gpu') or environment.get('cpu')}\n\n"
        f"Collected on {datetime.now(UTC):%Y-%m-%d} at scale `{studies[0]['scale']}` by `{command}`.\n"
        f"Studies: {names}. Made by a program; nothing here is typed by hand.\n\n"
        "A study's folder holds its `comparison.json` and the first run's summary of every variant; the `.html` files\n"
        "are the pages. `traces/` holds a few milliseconds of every variant, for `steptrace analyze traces`.\n\n"
        f"| environment | |\n|---|---|\n{facts}\n" + (f"\nMissing:\n\n{missing}" if missing else "")
    )


def _check_size(folder: Path) -> None:
    sizes = {file: file.stat().st_size for file in folder.rglob("*") if file.is_file()}
    if sum(sizes.values()) > MAX_BYTES:
        largest = max(sizes, key=lambda file: sizes[file])
        raise RecordError(
            f"the results take {sum(sizes.values()):,} bytes; the largest is {largest.name} with {sizes[largest]:,}",
            where=folder,
            expected=f"at most {MAX_BYTES:,} bytes",
            next_step="narrow STUDIES, or leave a page out",
        )
