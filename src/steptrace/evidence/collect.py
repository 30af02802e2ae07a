"""A GPU node's small results in one folder that can be committed, `reports/reference/<gpu>/`.

comparison.json of every study (of one that was cut off, what there is), every variant's first summary.json and a trace
excerpt, the pages, what the tests printed, what the benchmarks wrote, environment.json and a README. Which studies a
node can run is decided here, too.
"""

import re
import shutil
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from steptrace.config.gpus import count_gpus
from steptrace.config.plan import make_plan
from steptrace.config.settings import Project
from steptrace.documents.base import read, write
from steptrace.documents.comparison import Comparison
from steptrace.documents.run import Environment, is_simulated
from steptrace.documents.summary import Summary
from steptrace.errors import ConfigError, RecordError
from steptrace.names import near
from steptrace.standing import PARTIAL, WHOLE
from steptrace.trace.excerpt import Wanted, write_excerpt

MAX_BYTES: Final = 5_000_000
#: The largest excerpt of one variant's trace: a few milliseconds, and thirty of them fit beside the rest.
EXCERPT_BYTES: Final = 90_000
README_BYTES: Final = 50_000
LOG_LINES: Final = 200
_SIMULATED: Final = "> **Simulated.** No GPU was there: times and values come from a stand-in and mean nothing.\n\n"
#: Words of a GPU's name that do not tell it from another one.
_VENDOR: Final = {"nvidia", "amd", "geforce", "tesla", "instinct", "graphics", "sxm", "pcie", "hbm3", "hbm3e"}


def collect(work: Path, *, scale: str, out: Path, origin: str) -> Path:
    """Gather what the studies of `scale`, the tests and the benchmarks left in `work`; return the folder below `out`.

    An earlier folder of the same machine is replaced once the new one is complete. If it would be over 5 MB, files are
    left out: excerpts, then pages, then summaries, the largest first, those of the first studies last.

    Raises:
        RecordError: there is nothing at this scale, or comparisons and benchmarks alone are over 5 MB.
    """
    logs = work / "results" / "evidence"
    folders = sorted({file.parent for name in (WHOLE, PARTIAL) for file in work.glob(f"results/*/{name}")})
    studies = {f: read(f / PARTIAL if (f / PARTIAL).is_file() else f / WHOLE, Comparison) for f in folders}
    studies = {folder: study for folder, study in studies.items() if study.scale == scale}
    known = [study.environment for study in studies.values() if study.environment is not None]
    if not known and not (logs / "machine.json").is_file():
        raise RecordError(f"no study was compared at scale {scale}", where=work / "results", next_step="STAGE=studies")
    environment = known[0] if known else read(logs / "machine.json", Environment)
    folder = out / machine_name(environment)
    fresh = folder.with_name(f".{folder.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    (fresh / "traces").mkdir(parents=True)
    (fresh / "bench").mkdir()
    notes = [] if studies else [f"no study was compared at scale {scale}"]
    for source, study in studies.items():
        notes += _collect_study(source, study, fresh, logs / "excerpts")
    pages = [work / "reports" / f"{name}.html" for name in ["index", *(source.name for source in studies)]]
    for file in [*logs.glob("*.json"), *pages]:
        if file.is_file() and file.name != "machine.json":
            shutil.copyfile(file, fresh / ("bench" if file.suffix == ".json" else "") / file.name)
    for log in sorted(logs.glob("*.txt")):
        text = log.read_text(encoding="utf-8", errors="replace").replace(f"{work.resolve()}/", "")
        (fresh / log.name).write_text("\n".join(text.splitlines()[-LOG_LINES:]) + "\n", encoding="utf-8")
    if (logs / "left_out.txt").is_file():
        notes += (logs / "left_out.txt").read_text(encoding="utf-8").splitlines()
    write(fresh / "environment.json", environment)
    notes += _fit(fresh)
    (fresh / "README.md").write_text(
        f"# Reference results: {environment.gpu or environment.cpu}\n\n"
        f"{_SIMULATED if is_simulated(environment.gpu) else ''}"
        f"Collected on {datetime.now(UTC):%Y-%m-%d} at scale `{scale}` {origin}. Nothing here is typed by hand;\n"
        "`make gpu-results` makes tables of it, and `steptrace analyze traces` reads the excerpts.\n"
        + "".join(f"\n- {note}" for note in notes),
        encoding="utf-8",
    )
    shutil.rmtree(folder, ignore_errors=True)
    return fresh.rename(folder)


def machine_name(environment: Environment) -> str:
    """The folder's name: the GPU's without its vendor (`NVIDIA H200` is `h200`), `cpu` where there was none."""
    words = re.findall(r"[a-z0-9]+", (environment.gpu or "cpu").lower())
    return "-".join([word for word in words if word not in _VENDOR] or words)


def _collect_study(source: Path, study: Comparison, fresh: Path, kept: Path) -> Iterator[str]:
    """Copy a study's figures and excerpts, which are made once in `kept`; yield what is missing."""
    (fresh / source.name).mkdir()
    kept.mkdir(parents=True, exist_ok=True)
    (fresh / source.name / WHOLE).write_bytes(msgspec.json.encode(study) + b"\n")
    if study.partial is not None:
        yield f"{source.name}: partial, {study.partial.runs} of {study.partial.planned} runs"
    for variant in (entry.name for entry in study.variants):
        run, excerpt = source / variant / "run0", kept / f"{source.name}.{variant}.pt.trace.json.gz"
        trace = run / "trace.json.gz"
        summary = next((run / n for n in ("summary.json", "summary.partial.json") if (run / n).is_file()), None)
        if summary is None or not (run / "run.json").is_file():
            yield f"{source.name}/{variant}: run0 did not end well, so there is no summary and no excerpt"
            continue
        try:
            document = read(summary, Summary)
            traces = tuple(replace(trace, timeline=None) for trace in document.traces)  # a picture, which the page has
            content = msgspec.json.encode(replace(document, traces=traces)) + b"\n"
            (fresh / source.name / f"{variant}.summary.json").write_bytes(content)
            if not excerpt.is_file() or excerpt.stat().st_mtime <= trace.stat().st_mtime:
                write_excerpt(trace, excerpt, Wanted(max_bytes=EXCERPT_BYTES))
            shutil.copyfile(excerpt, fresh / "traces" / excerpt.name)
        except Exception as error:  # whatever it is, the others' results are wanted: a node is not lent twice
            yield f"{source.name}/{variant}: incomplete, {getattr(error, 'what', error)}"


def _fit(folder: Path) -> list[str]:
    """Leave files out until the folder fits, with room for the README; return what was left out."""
    sizes = {file: file.stat().st_size for file in folder.rglob("*") if file.is_file()}
    kinds = [[*folder.glob("traces/*")], [*folder.glob("*.html")], [*folder.glob("*/*.summary.json")]]
    spare = [(_study(f) in FIRST, kind, -sizes[f], f) for kind, files in enumerate(kinds) for f in files]
    notes: list[str] = []
    for *_, file in sorted(one for one in spare if one[-1].name != "index.html"):
        if sum(sizes.values()) <= MAX_BYTES - README_BYTES:
            return notes
        notes.append(f"{file.relative_to(folder)}: left out, its {sizes.pop(file):,} bytes are too many")
        file.unlink()
    if sum(sizes.values()) > MAX_BYTES - README_BYTES:
        largest = max(sizes, key=lambda file: sizes[file])
        what = f"the results take {sum(sizes.values()):,} bytes; the largest is {largest.name}"
        raise RecordError(what, where=folder, expected=f"at most {MAX_BYTES:,} bytes", next_step="narrow STUDIES")
    return notes


def _study(file: Path) -> str:
    return file.parent.name if file.name.endswith(".summary.json") else file.name.partition(".")[0]


#: The studies that the others refer to: first to run, last to give way to the size limit.
FIRST: Final = ("masked_loss", "giou")
_ENTRY: Final = re.compile(r"(?P<studies>[^:,]+(,[^:,]+)*)(?P<repeats>:[1-9][0-9]*)?")


def runnable(root: Path, workdir: Path, scale: str, wanted: Sequence[str] = ()) -> tuple[list[str], list[str]]:
    """The entries of `wanted` with the studies that this machine has GPUs for, and a sentence for each other study.

    An entry is `NAME`, or `NAME,NAME:REPEATS`. The default is everything of config/study, the studies that others
    refer to first, with one run of each variant and then with all.

    Raises:
        ConfigError: an entry is not of that form, there is no such study, or a study's configuration is wrong.
    """
    files = Project(root=root, workdir=workdir).study_files
    first = ",".join(name for name in FIRST if name in files)
    chosen, left_out = [], {}
    for entry in list(wanted) or [f"{first}:1", first, *sorted(set(files) - set(FIRST))]:
        match = _ENTRY.fullmatch(entry)
        if match is None:
            raise ConfigError(f"'{entry}' names no study", where="STUDIES", expected="NAME, or NAME,NAME:REPEATS")
        names = match["studies"].split(",")
        for name in names:
            if name not in files:
                raise ConfigError(f"there is no study '{name}'", where="STUDIES", next_step=near(name, files))
            gpus, needed = count_gpus(), gpus_needed(root, workdir, scale, name)
            if scale == "gpu" and needed > gpus:
                left_out[name] = f"{name}: left out, it needs {needed} GPUs; here: {gpus}"
        if kept := [name for name in names if name not in left_out]:
            chosen.append(",".join(kept) + (match["repeats"] or ""))
    return chosen, list(left_out.values())


def gpus_needed(root: Path, workdir: Path, scale: str, study: str) -> int:
    """The most processes, and so GPUs, that a variant of `study` trains on at `scale`."""
    plan = make_plan(root, workdir, {"studies": [study], "scale": scale}, write=False)
    return max(int(v.config["distributed"]["world_size"]) for v in plan.studies[study].variants)
