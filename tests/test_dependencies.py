"""Dependencies: the locks agree with them and with each other; a command without its extra says which one it needs."""

import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from builders import TraceBuilder, training_step
from steptrace import cli
from steptrace.extras import EXTRA_OF_MODULE

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LIGHT = [Requirement(text) for text in PROJECT["dependencies"]]
EXTRAS = {
    extra: [Requirement(text) for text in texts if not text.startswith("steptrace[")]
    for extra, texts in PROJECT["optional-dependencies"].items()
}
DIRECT = [*LIGHT, *EXTRAS["predict"], *EXTRAS["lab"]]


def _locked(name: str) -> dict[str, str]:
    lines = [line for line in (ROOT / name).read_text().splitlines() if line and not line.startswith(("#", "-r "))]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[^\s;@]+", line) for line in lines)  # no addresses, no ranges
    pairs = [line.split("==") for line in lines]
    assert len({canonicalize_name(package) for package, _ in pairs}) == len(pairs)
    return {canonicalize_name(package): version for package, version in pairs}


LOCKED = _locked("requirements.lock")
#: Not in the locks: those of torch's CUDA build, as they are made on its CPU build; what an environment begins with.
_LEFT_OUT = ("nvidia-", "cuda-", "triton", "setuptools")
WITH_CHECKS = LOCKED | _locked("requirements-dev.lock")


def test_the_locks_name_no_package_twice() -> None:
    assert not set(LOCKED) & set(_locked("requirements-dev.lock"))


@pytest.mark.parametrize("requirement", DIRECT, ids=lambda requirement: requirement.name)
def test_the_lock_has_a_version_that_pyproject_allows(requirement: Requirement) -> None:
    assert requirement.specifier.contains(LOCKED[canonicalize_name(requirement.name)], prereleases=True)


def test_the_locks_have_all_that_their_packages_require() -> None:
    problems = []
    for package, version in WITH_CHECKS.items():
        try:
            installed = metadata.distribution(package)
        except metadata.PackageNotFoundError:
            continue  # of another machine's environment
        if installed.version.split("+")[0] != version:
            continue  # another version than the lock's is tried here: its requirements are not the lock's
        for text in installed.requires or ():
            wanted = Requirement(text)
            if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
                continue
            locked = WITH_CHECKS.get(canonicalize_name(wanted.name))
            if locked is None and canonicalize_name(wanted.name).startswith(_LEFT_OUT):
                continue
            if locked is None or not wanted.specifier.contains(locked, prereleases=True):
                problems.append(f"{package} {version} requires {wanted}, the lock has {locked}")
    assert problems == []


@pytest.mark.parametrize("extra", ["predict", "lab"])
def test_each_package_of_an_extra_is_named_by_the_message_of_a_command_that_lacks_it(extra: str) -> None:
    modules = metadata.packages_distributions()
    for requirement in EXTRAS[extra]:
        name = canonicalize_name(requirement.name)
        provided = [module for module, owners in modules.items() if name in map(canonicalize_name, owners)]
        named = [EXTRA_OF_MODULE[module] for module in provided if module in EXTRA_OF_MODULE]
        assert named == [extra] * len(named)
        assert named or name == "hydra-core"


@pytest.mark.parametrize(
    ("missing", "arguments", "extra"),
    [("hydra", ["predict", "masked_loss"], "lab"), ("scipy", ["compare", "a.json", "b.json"], "lab")],
)
def test_a_command_without_its_extra_says_which_one_it_needs(
    missing: str,
    arguments: list[str],
    extra: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def without(*_: object) -> None:
        raise ModuleNotFoundError(f"No module named '{missing}'", name=missing)

    command = f"steptrace.commands.{arguments[0]}"
    monkeypatch.setattr(f"{command}.run", without)
    monkeypatch.chdir(tmp_path)
    assert cli.main(arguments) == 2
    assert f"steptrace[{extra}]" in capsys.readouterr().err


def test_a_missing_module_of_no_extra_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def without(*_: object) -> None:
        raise ModuleNotFoundError("No module named 'nobody'", name="nobody")

    monkeypatch.setattr("steptrace.commands.doctor.run", without)
    with pytest.raises(ModuleNotFoundError):
        cli.main(["doctor"])


@pytest.mark.parametrize(("missing", "extra", "code"), [
    ("torch", "predict", "steptrace.predict_syncs"),
    ("matplotlib", "lab", "steptrace.load_study('reports/reference/h100/masked_loss').plot_step_times()"),
])  # fmt: skip
def test_python_without_an_extra_says_which_one_it_needs(missing: str, extra: str, code: str) -> None:
    script = f"import sys; sys.modules['{missing}'] = None\nimport steptrace\n{code}"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].count(f"steptrace[{extra}]") == 1


_WITHOUT_EXTRAS = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
BLOCKED = set(sys.argv[1].split(","))
sys.meta_path.insert(0, Missing())
from steptrace.cli import main
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.parametrize("command", ["analyze", "diff"])
def test_traces_are_read_without_any_extra(command: str, tmp_path: Path) -> None:
    builder = TraceBuilder()
    training_step(builder)
    trace = tmp_path / "trace.json"
    builder.write(trace)
    words = [command, *[str(trace)] * (2 if command == "diff" else 1), "--out", str(tmp_path / "out")]
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_EXTRAS, ",".join(EXTRA_OF_MODULE), *words],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr
    assert (tmp_path / "out" / ("diff.html" if command == "diff" else "report.html")).is_file()


@pytest.mark.parametrize("words", [["init", "mine"], ["doctor"]])
@pytest.mark.parametrize("blocked", ["snakemake", "nothing"])
def test_commands_that_lead_to_snakemake_say_how_to_install_it(words: list[str], blocked: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_EXTRAS, blocked, *words],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("pip install 'steptrace[lab]'") == (blocked == "snakemake")
