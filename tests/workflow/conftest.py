"""A small copy of the workflow whose trainings, tables and pages are fakes, so that the workflow alone is tested."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from builders import TraceBuilder, training_step
from documents import fill, plain
from snakemake_calls import run_snakemake
from steptrace.documents.run import RunRecord

ROOT = Path(__file__).parents[2]
FAKES = Path(__file__).parent / "fakes"

STUDY = """
title: A study of nothing
baseline: plain
overrides: [loss=fake]
reference: [loss.mode=ok]
variants:
  plain: [seed=0]
  other: [seed=1]
"""
#: One that trains, for a moment; its variants are the test's own.
SMALL_STUDY = """
title: A very small study
baseline: boolean_mask
overrides:
  - data.dataset.image_size=16
  - data.batch_size=2
  - data.num_workers=0
  - data.prefetch_factor=null
  - data.persistent_workers=false
  - model.layers=1
  - scale.warmup_steps=1
  - scale.timed_steps=4
  - profile.active=2
  - equivalence.seeds=[0]
  - python_path=[plugins]
reference: [loss=masked_reference]
"""
Once = Callable[[str, Callable[[Path], None]], Path]
WORKFLOW = "studies: [tiny]\nrepeats: 2\nscale: cpu\n"


@pytest.fixture
def small_study() -> str:
    """A study that really trains, but for its `variants:`."""
    return SMALL_STUDY


@dataclass(frozen=True)
class Project:
    """A folder with a Snakefile, a configuration and a package of its own."""

    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        # With bytecode, or every job would compile what it imports: nothing has run in the copy before.
        leave = ("CUDA_VISIBLE_DEVICES", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE")
        keep = {name: value for name, value in os.environ.items() if name not in leave}
        own = {"PYTHONPATH": str(self.folder / "src"), "STEPTRACE_FOLDER": str(self.folder / "locks")}
        return {**keep, **own, "STEPTRACE_FORKS": "0"}  # the fakes import no PyTorch

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "snakemake", "--cores", "2", *arguments]

    def run(self, *arguments: str, cwd: Path | None = None, **environment: str) -> "subprocess.CompletedProcess[str]":
        """Run Snakemake to its end; stdout and stderr come together in `stdout`."""
        return run_snakemake(
            "--cores", "2", *arguments, cwd=cwd or self.folder, environment=self.environment | environment
        )

    def start(self, *arguments: str, start_new_session: bool = False) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            self.command(*arguments),
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=start_new_session,
        )

    def ran(self) -> list[str]:
        """What ran since the last call, in order."""
        path = self.folder / "runs.txt"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return lines

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def edit(self, name: str, old: str, new: str) -> None:
        text = (self.folder / name).read_text()
        assert old in text
        self.write(name, text.replace(old, new))


@pytest.fixture(scope="session")
def fresh(once: Once, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project in which nothing has run. Dry runs may be made in it, nothing else: copy it."""
    folder = once("fresh", lambda folder: _write_project(folder / "project")) / "project"
    return Project(Path(shutil.copytree(folder, tmp_path_factory.mktemp("fresh") / "project")))


def _write_project(folder: Path) -> None:
    no_caches = shutil.ignore_patterns("__pycache__")
    for name in ("workflow", "profiles", "config", "src"):
        shutil.copytree(ROOT / name, folder / name, ignore=no_caches)
    shutil.copy(ROOT / "Snakefile", folder)
    for helper in (ROOT / "tests" / "documents.py", FAKES / "pace.py", FAKES / "sitecustomize.py"):  # of the fakes
        shutil.copy(helper, folder / "src")
    package = folder / "src" / "steptrace"
    shutil.copy(FAKES / "main.py", package / "lab" / "__main__.py")  # the real one imports torch: 2 s of CPU time
    shutil.copy(FAKES / "files.py", package / "engine")
    shutil.copy(FAKES / "equivalence.py", package / "equivalence" / "main.py")
    shutil.copy(FAKES / "predict.py", package / "predict" / "main.py")
    (package / "predict" / "__init__.py").write_text("")  # it imports torch
    shutil.copy(FAKES / "fake_losses.py", package / "workloads")
    for name in ("analyze_runs", "compare", "report"):
        shutil.copy(FAKES / "job.py", folder / "workflow" / "scripts" / f"{name}.py")
    (folder / "src" / "run.json").write_text(json.dumps(plain(fill(RunRecord, {}))))  # of a fake training
    project = Project(folder)
    project.write("config/loss/fake.yaml", "_target_: steptrace.workloads.fake_losses.Loss\nmode: ok\n")
    project.write("config/study/tiny.yaml", STUDY)
    project.write("config/workflow.yaml", WORKFLOW)
    # Planned once, so that not every test imports torch to check the same targets and parses the same code.
    assert project.run("--dry-run").returncode == 0
    assert not (folder / "results").exists()


@pytest.fixture(scope="session")
def finished(once: Once, fresh: Project) -> Project:
    """A project, with a trace, that has run to its end. Not to be changed: copy it. `first.log`: Snakemake's output."""

    def run(folder: Path) -> None:
        project = Project(Path(shutil.copytree(fresh.folder, folder / "project")))
        builder = TraceBuilder()
        training_step(builder, 0, 0)
        builder.write(project.folder / "recorded.json")
        project.edit("config/workflow.yaml", "scale: cpu", "scale: cpu\ntraces: {recorded: recorded.json}")
        result = project.run()
        assert result.returncode == 0, result.stdout
        project.write("first.log", result.stdout)

    return Project(once("finished", run) / "project")


@pytest.fixture
def new_project(fresh: Project, tmp_path: Path) -> Project:
    """A project of one's own in which nothing has run."""
    return Project(Path(shutil.copytree(fresh.folder, tmp_path / "project")))


@pytest.fixture
def project(finished: Project, tmp_path: Path) -> Project:
    """A project of one's own that has run to its end; `ran` tells what runs from now on."""
    copy = Project(Path(shutil.copytree(finished.folder, tmp_path / "project")))
    copy.ran()
    return copy


@pytest.fixture(scope="session")
def planned() -> Callable[["subprocess.CompletedProcess[str]"], dict[str, int]]:
    """A function from a dry run's result to how often each rule would run."""

    def read(result: "subprocess.CompletedProcess[str]") -> dict[str, int]:
        table = result.stdout.split("Job stats:")[1].split("\n\n")[0]
        rows = [line.split() for line in table.splitlines()]
        return {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdigit()}

    return read
