"""What a digest sees and what it does not, of code and of configurations: this decides what runs again."""

import importlib.metadata
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from steptrace.config import digest, study
from steptrace.config.compose import compose
from steptrace.config.digest import Cache, Code
from steptrace.config.plan import Plan, make_plan
from steptrace.config.variant_kind import TRAINING
from steptrace.errors import ConfigError

FILES = {
    "__init__.py": "",
    "errors.py": "class Error(Exception): ...\n",
    "work/__init__.py": '"""Doc."""\n',
    "work/losses.py": "from steptrace.errors import Error\nclass Loss:\n    '''Doc.'''\n    slope = 1\n",
    "work/other.py": "value = 1\n",
    "work/kernel.cu": "__global__ void f() {}",
    "lab/__init__.py": "",
    "lab/main.py": "import steptrace.run_folder\ndef run():\n    from . import loop\n",
    "lab/loop.py": "value = 1\n",
    "lab/supervise.py": "value = 1\n",
    "run_folder.py": "value = 1\n",
}

STUDY = "title: Tiny\nbaseline: plain\nreference: [loss=masked_reference]\nvariants:\n  plain: [loss=boolean_mask]\n"
ROOT = Path(__file__).parents[2]
INIT = ROOT / "src" / "steptrace" / "commands" / "init" / "files"
WITH_PLUGINS = """
title: Tiny
baseline: plain
overrides: ["python_path=[plugins]"]
variants:
  plain: [loss=where]
  other: [loss=mine]
"""
PLUGINS = {
    "mine/__init__.py": "",
    "mine/losses.py": "from .parts import half\nfrom shared import value\nclass Loss:\n    table = 'weights.yaml'\n",
    "mine/parts.py": "half = 0.5\n",
    "mine/weights.yaml": "a: 1\n",
    "shared.py": "value = 1\n",
    "unused.py": "value = 1\n",
}


@pytest.fixture
def package(tmp_path, monkeypatch):
    folder = tmp_path / "steptrace"
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(digest, "_PACKAGE", folder)
    return folder


def code_digest(*modules, **where):
    return Code(Cache(Path("nowhere"))).digest(*modules, **where)


def of_training():
    return code_digest(["steptrace.lab.main", "steptrace.work.losses.Loss", "torch.optim.SGD"])


REFORMATTED = """
# a comment
from steptrace.errors import (
    Error,
)

class Loss:
    '''Another docstring.'''
    slope = (1)
"""


@pytest.mark.parametrize(
    ("name", "text", "counts"),
    [
        ("work/losses.py", FILES["work/losses.py"].replace("slope = 1", "slope = 2"), True),
        ("lab/loop.py", "value = 2\n", True),  # imported inside a function, relatively
        ("run_folder.py", "value = 2\n", True),
        ("errors.py", "class Mistake(Exception): ...\n", True),
        ("work/__init__.py", "value = 1\n", True),  # executed on the way to the loss
        ("work/kernel.cu", "__global__ void f() { }", True),  # another language: every byte counts
        ("work/table.json", "1", True),  # a new data file
        ("work/losses.py", REFORMATTED, False),
        ("work/__pycache__/losses.pyc", "1", False),
        ("work/.hidden", "1", False),
        ("lab/supervise.py", "value = 2\n", False),  # not run
        ("work/other.py", "value = 2\n", False),
    ],
)
def test_a_change_of_what_runs_counts_and_no_other(package, name, text, counts):
    before = of_training()
    path = package / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    assert (of_training() != before) is counts


def test_a_star_is_every_module_of_a_package(package):
    before = code_digest(["steptrace.work.*"])
    (package / "work/other.py").write_text("value = 2\n")
    assert code_digest(["steptrace.work.*"]) != before


def test_scripts_are_followed_into_the_package(package, tmp_path):
    script = tmp_path / "script.py"
    script.write_text("from steptrace.work.other import value\n")
    before = code_digest(scripts=[script])
    (package / "work/losses.py").write_text("changed = 1\n")
    assert code_digest(scripts=[script]) == before
    (package / "work/other.py").write_text("value = 2\n")
    assert code_digest(scripts=[script]) != before


def test_a_folder_counts_as_a_whole_but_for_what_is_left_out(tmp_path):
    folder = tmp_path / "mine"
    (folder / "results").mkdir(parents=True)
    (folder / "net.py").write_text("from . import b\nvalue = 1\n")
    (folder / "nowhere").symlink_to("gone")
    before = code_digest(folders=[folder], without=[folder / "results"])
    (folder / "net.py").write_text("from . import b\nvalue = 1  # comment\n")
    (folder / "results" / "a.json").write_text("{}")
    assert code_digest(folders=[folder], without=[folder / "results"]) == before
    (folder / "weights.txt").write_text("1")
    assert code_digest(folders=[folder], without=[folder / "results"]) != before


def test_a_file_that_is_no_python_counts_by_its_bytes(package):
    (package / "work/losses.py").write_text("class Loss(\n")
    before = of_training()
    (package / "work/losses.py").write_text("class Loss((\n")
    assert of_training() != before


def test_a_folder_of_data_is_no_code_and_cannot_count_as_a_whole(tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    for number in range(5):
        (tmp_path / "data" / f"{number}.yaml").write_text("")
    (tmp_path / "train.py").write_text("import importlib\nfolder = 'data'\n")
    monkeypatch.setattr(digest, "_MOST_FILES", 3)
    before = code_digest(scripts=[tmp_path / "train.py"], roots=[tmp_path])
    (tmp_path / "data" / "0.yaml").write_text("a: 1")
    assert code_digest(scripts=[tmp_path / "train.py"], roots=[tmp_path]) == before
    with pytest.raises(ConfigError, match="more than 3 files"):
        code_digest(folders=[tmp_path])


def test_the_real_training_depends_on_its_loss_and_not_on_its_supervisor():
    seen = digest._package_files(digest._PACKAGE, "steptrace.workloads.masked_losses.WhereLoss")
    assert "workloads/masked_losses.py" in seen
    files = {path for module in TRAINING.code["training"] for path in closure(module)}
    assert {"main.py", "loop.py", "probe.py", "measure.py", "run_folder.py"} <= {path.name for path in files}
    others = {"jobs/supervise.py", "jobs/checks.py", "equivalence/main.py", "config/plan.py", "documents/summary.py"}
    assert all((digest._PACKAGE / name).is_file() for name in others)
    assert not others & {path.relative_to(digest._PACKAGE).as_posix() for path in files}
    assert "predict" not in {path.relative_to(digest._PACKAGE).parts[0] for path in files}


def test_no_part_of_a_run_depends_on_the_analysis_findings_or_pages():
    """An edit of these would train and check everything anew; what is imported for types alone is not executed."""
    for module in (
        "steptrace.lab.main",
        "steptrace.equivalence.main",
        "steptrace.predict.main",
        "steptrace.jobs.variant",
        "steptrace.jobs.command_checks",
    ):
        folders = {path.relative_to(digest._PACKAGE).parts[0] for path in closure(module)}
        assert not {"analysis", "findings", "report", "compare", "diff", "library", "workflow"} & folders, module


def closure(*modules):
    code = Code(Cache(Path("nowhere")))
    code.digest(modules)
    return {path for path, _ in code._files}


def test_what_was_parsed_is_kept_for_another_call_and_another_folder(tmp_path, monkeypatch):
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "loss.py").write_text("SCALE = 1\n")
    cache = Cache(tmp_path / "plan.cache")
    first = Code(cache).digest(folders=[folder])
    cache.save()
    monkeypatch.setattr(digest, "_read", lambda *_, **__: pytest.fail("read again"))
    copy = shutil.copytree(folder, tmp_path / "copy" / "code")  # another path, other times
    assert Code(Cache(tmp_path / "plan.cache")).digest(folders=[copy]) == first
    monkeypatch.undo()
    (folder / "loss.py").write_text("SCALE = 2\n")  # as long as before
    assert Code(Cache(tmp_path / "plan.cache")).digest(folders=[folder]) != first


@pytest.fixture
def digests(plan_of: Callable[..., Plan], copy: Path) -> Callable[[], dict[str, str]]:
    """A function that plans the study and gives the digests of its trainings."""
    for name, text in PLUGINS.items():
        path = copy / "plugins" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (copy / "config" / "loss" / "mine.yaml").write_text("_target_: mine.losses.Loss\n")

    def planned() -> dict[str, str]:
        plan = plan_of(WITH_PLUGINS, allow_targets=["mine"])
        return {variant: plan.key("training", study, variant) for study, variant in plan.variants}

    return planned


def test_an_edit_concerns_the_variants_that_import_the_file(digests: Callable[..., dict[str, str]], copy: Path) -> None:
    before = digests()
    by_name = "import importlib\nvalue = importlib.import_module('unused').value\n"
    for name, text, counts in (
        ("unused.py", "value = 2\n", False), ("NOTES.md", "notes", False), ("mine/new.py", "value = 1\n", False),
        ("mine/parts.py", "half = 0.5  # a comment\n", False), ("mine/parts.py", "half = 0.25\n", True),
        ("mine/weights.yaml", "a: 2\n", True), ("mine/__init__.py", "value = 1\n", True), ("shared.py", by_name, True),
        ("unused.py", "value = 3\n", True),  # any module of the folder may be imported now
    ):  # fmt: skip
        (copy / "plugins" / name).write_text(text)
        after = digests()
        assert (after["other"] != before["other"]) is counts, name
        assert after["plain"] == before["plain"], name
        before = after


def test_an_edit_in_the_folder_of_init_trains_the_study_that_uses_the_file(tmp_path: Path) -> None:
    for file in (path for path in INIT.rglob("*") if path.is_file() and "__pycache__" not in path.parts):
        target = tmp_path / file.relative_to(INIT)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.read_bytes())

    def digests() -> dict[tuple[str, str], str]:
        plan = make_plan(ROOT, tmp_path, {"scale": "cpu"})
        return {pair: plan.key("training", *pair) for pair in plan.variants}

    uses = {"NOTES.md": set(), "plugins/other.py": set(), "train.py": {"training"}, "plugins/losses.py": {"masks"}}
    before = digests()
    for name, studies in uses.items():
        path = tmp_path / name
        path.write_text((path.read_text() if path.exists() else "") + "\nedited = 1\n")
        after = digests()
        assert {pair[0] for pair in after if after[pair] != before[pair]} == studies
        before = after


def test_a_plan_as_it_ships_is_the_plan_of_the_tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`tests/conftest.py` composes and parses each file once for all tests. A command does so by itself."""

    def planned(folder: Path) -> dict[str, str]:
        plan = make_plan(ROOT, folder, {"scale": "cpu", "studies": ["masked_loss"]})
        files = {path: text for chosen in plan.studies.values() for path, text in chosen.files().items()}
        keys = {
            "/".join((what, *pair)): plan.key(what, *pair)
            for what in ("training", "prediction")
            for pair in plan.variants
        }
        return files | keys

    of_tests = planned(tmp_path / "of_tests")
    monkeypatch.setenv("STEPTRACE_FOLDER", str(tmp_path / "private"))  # without what earlier plans have kept
    monkeypatch.setattr(study, "compose", compose)
    monkeypatch.setattr(digest, "_read", digest._read.__wrapped__)
    assert planned(tmp_path / "as_it_ships") == of_tests


def test_versions_are_those_of_the_distributions_that_hold_the_modules():
    found = digest.versions(["yaml.SafeLoader", "msgspec.Struct", "os.path", "nobody.has.this", "steptrace.files"])
    assert found == {name: importlib.metadata.version(name) for name in ("PyYAML", "msgspec")}


def test_of_distributions_that_share_a_namespace_package_the_one_with_the_named_part_counts(tmp_path, monkeypatch):
    for name, part in (("shared-one", "one"), ("shared-two", "two")):
        (tmp_path / "shared" / part).mkdir(parents=True)
        (tmp_path / "shared" / part / "__init__.py").touch()
        metadata = tmp_path / f"{name.replace('-', '_')}-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (metadata / "RECORD").write_text(f"shared/{part}/__init__.py,,\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    digest._modules.cache_clear()
    try:
        assert digest.versions(["shared.one.Loss"]) == {"shared-one": "1.0"}
        assert digest.versions(["shared.two.Loss", "shared.one.Loss"]) == {"shared-one": "1.0", "shared-two": "1.0"}
        assert digest.versions(["shared", "shared.new.Loss"]) == {"shared-one": "1.0", "shared-two": "1.0"}
    finally:
        digest._modules.cache_clear()
        digest._distributions.cache_clear()


def test_the_version_of_a_package_that_the_users_code_imports_counts(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("import yaml\nfrom other import value\n")
    (tmp_path / "other.py").write_text("import msgspec\n")

    def current(*, installed=True):
        return Code(Cache(tmp_path / "cache")).digest(["mine.Loss"], roots=[tmp_path], installed=installed)

    before = current()
    without = current(installed=False)
    real = importlib.metadata.version
    for changed in ("PyYAML", "msgspec"):
        monkeypatch.setattr(
            importlib.metadata, "version", lambda name, changed=changed: "0" if name == changed else real(name)
        )
        assert current() != before
        assert current(installed=False) == without


def test_modules_that_a_package_imports_by_its_name_alone_count(package):
    (package / "work" / "build.py").write_text(
        "from steptrace.subject import modules_in\nmodules_in('steptrace.lab')\n"
    )
    before = code_digest(["steptrace.work.build"])
    (package / "lab" / "supervise.py").write_text("value = 2\n")
    assert code_digest(["steptrace.work.build"]) != before


def test_the_analysis_of_a_trace_depends_on_each_of_its_subjects():
    (real,) = {path.parent for path in digest._PACKAGE.glob("analysis/idle.py")}
    files = digest._PACKAGE.glob("analysis/*.py")
    code = Code(Cache(real / "no-such-file"))
    code.digest(["steptrace.commands.analyze"])
    assert {path for path, _ in code._files} >= set(files)
