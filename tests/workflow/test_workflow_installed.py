"""Studies without a checkout: the wheel in an environment of its own, `steptrace init`, and Snakemake there."""

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from unittest import mock

import pytest

import forked_python
from pages import blocks
from steptrace.cli import main
from steptrace.config.plan import make_plan

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with the wheel of this checkout; all else comes from the tests' environment."""
    folder = tmp_path_factory.mktemp("installed")
    with mock.patch("setuptools.setup"):
        carried = runpy.run_path(str(ROOT / "setup.py"))["CARRIED"]
    no_builds = shutil.ignore_patterns("__pycache__", "build", "*.so", "*.egg-info")
    for name in (*carried, "ext/compiled", "src", "setup.py", "pyproject.toml", "README.md", "LICENSE"):
        target = folder / "source" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target, ignore=no_builds)
        else:
            shutil.copy(ROOT / name, target)
    # As pip does: what pyproject.toml names as `build-backend`. Nobody waits for what its code is compiled to.
    build = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    _run("-c", build, folder, cwd=folder / "source", CFLAGS="-O0")
    shutil.rmtree(folder / "source")
    _run("-m", "venv", "--without-pip", folder / "venv")
    python = folder / "venv" / "bin" / "python"
    (site,) = folder.glob("venv/lib/python*/site-packages")
    # A folder named in a .pth file is searched, but its own .pth files, such as our editable install's, are not read.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    (wheel,) = folder.glob("*-cp311-abi3-*.whl")  # one wheel for all versions of Python
    _run("-m", "pip", "--quiet", "--python", python, "install", "--no-deps", "--no-index", wheel)
    return python


def _run(
    *arguments: str | Path,
    python: Path = Path(sys.executable), cwd: Path | None = None, path: str = "", **variables: str,
) -> str:  # fmt: skip
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | variables
    environment["PATH"] = path + environment["PATH"]
    if cwd is not None:
        environment["STEPTRACE_FOLDER"] = str(cwd / "locks")
    done = subprocess.run(
        [python, *arguments],
        cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=1500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_the_wheel_carries_the_workflow_as_it_is_in_the_checkout(installed: Path) -> None:
    print_root = "from steptrace.root import ROOT; print(ROOT)"
    root = Path(_run("-c", print_root, python=installed).strip())
    assert installed.parents[1] in root.parents
    for name in ("Snakefile", "workflow", "config", "profiles", "ext/giou"):
        ours = ROOT / name
        files = [ours] if ours.is_file() else [file for file in ours.rglob("*") if _is_source(file)]
        assert files
        for file in files:
            assert (root / file.relative_to(ROOT)).read_bytes() == file.read_bytes()


def _is_source(file: Path) -> bool:
    return file.is_file() and not {"__pycache__", "build"} & set(file.parts) and file.suffix != ".so"


@pytest.mark.workflow
@pytest.mark.usefixtures("forked_programs")
def test_a_new_folder_runs_its_study(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "mine"
    output = _run("-m", "steptrace.cli", "init", "mine", python=installed, cwd=tmp_path)
    assert output.endswith("next: cd mine && snakemake --cores all\n")
    short = (
        "[scale.warmup_steps=1, scale.timed_steps=4, profile.active=2, data.num_workers=0, data.prefetch_factor=null, "
    )
    study = folder / "config" / "study" / "masks.yaml"
    text = study.read_text()
    assert "cpu: [" in text
    study.write_text(text.replace("cpu: [", f"cpu: {short}data.persistent_workers=false, "))
    # The study of a command finds its `python` on the path.
    path = f"{forked_python.executable(tmp_path / 'python').parent}{os.pathsep}"
    ran = _run(
        "-m", "snakemake", "--cores", "2", "--config", "repeats=1", "scale=cpu",
        python=installed, cwd=folder, path=path,
    )  # fmt: skip
    assert f"steptrace: report: {folder}/reports/index.html" in ran
    comparison = json.loads((folder / "results" / "masks" / "comparison.json").read_text())
    variants = {variant["name"]: variant for variant in comparison["variants"]}
    assert {name: variant["equivalence"]["status"] for name, variant in variants.items()} == {
        "mask": "same",
        "product": "same",
    }
    assert variants["mask"]["syncs"]["predicted_per_step"] > variants["product"]["syncs"]["predicted_per_step"] == 0
    page = (folder / "reports" / "masks.html").read_text()
    assert "<script>" in page  # the wheel holds the page's script
    # The study of a command: train.py, started as it is.
    training = json.loads((folder / "results" / "training" / "comparison.json").read_text())
    variants = {variant["name"]: variant for variant in training["variants"]}
    assert [variants[name]["status"] for name in ("every_step", "every_50")] == ["ok", "ok"]
    assert [variants[name]["syncs"]["predicted_per_step"] for name in ("every_step", "every_50")] == [1, 0.02]
    (branch,) = variants["every_50"]["predicted_branches"]
    assert (branch["file"], branch["every"], variants["every_50"]["syncs"]["predicted_steps"]) == ("train.py", 50, 50)
    (site,) = variants["every_step"]["predicted_sites"]
    assert (site["file"], site["code"].startswith('print(f"step {step + 1}: loss {loss.item()')) == ("train.py", True)
    equivalence = variants["every_50"]["equivalence"]
    assert (equivalence["status"], equivalence["max_rel_err"]) == ("same", 0)
    assert variants["every_step"]["step_ms"]["median"] > 0
    page = (folder / "reports" / "training.html").read_text()
    assert "--variant results/training/VARIANT/config.yaml" in page
    # The lock was taken, by the module's `onstart`, which Snakemake leaves to the Snakefile that uses it.
    assert (folder / "results" / ".cache" / "running.lock").is_file()
    # What docs/tutorial.md does then: the place that the finding names is mended.
    (finding,) = (finding for finding in comparison["findings"] if finding["rule"] == "predicted_syncs")
    losses = folder / "plugins" / "losses.py"
    lines = losses.read_text().splitlines(keepends=True)
    assert (finding["source"]["file"], lines[finding["source"]["line"] - 1].split()[0]) == ("losses.py", "return")
    (mended,) = blocks("docs/tutorial.md", "python")
    losses.write_text("".join([*lines[: finding["source"]["line"] - 1], mended, *lines[finding["source"]["line"] :]]))
    monkeypatch.chdir(folder)
    assert main(["predict", "masks", "--budget", "0"]) == 0
    assert "mask: 0 syncs per step predicted" in capsys.readouterr().out
    # The studies that come with steptrace can be chosen here, too.
    assert ("masked_loss", "where") in make_plan(ROOT, folder, {"studies": ["masked_loss"]}).variants


def test_init_changes_nothing_that_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = tmp_path / "config" / "workflow.yaml"
    mine.parent.mkdir()
    mine.write_text("studies: []\n")
    assert main(["init", str(tmp_path)]) == 2
    assert f"{mine} exists already" in capsys.readouterr().err
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == [mine]
    assert mine.read_text() == "studies: []\n"


def test_init_leaves_a_project_s_readme_and_writes_one_where_there_is_none(tmp_path: Path) -> None:
    project = tmp_path / "project"
    fresh = tmp_path / "fresh"
    project.mkdir()
    (project / "README.md").write_text("# Mine\n")
    assert [main(["init", str(folder)]) for folder in (project, fresh)] == [0, 0]
    assert (project / "README.md").read_text() == "# Mine\n"
    assert (project / "Snakefile").is_file()
    # Each file that the readme names is there.
    named = re.findall(r"^\| `([^`]+)` \|", (fresh / "README.md").read_text(), re.MULTILINE)
    assert len(named) == 6
    assert all((fresh / name).is_file() for name in named)
