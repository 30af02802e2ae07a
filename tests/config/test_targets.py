"""A training depends on the code that its `_target_`s execute, also in the user's folders, and on no more."""

from collections.abc import Callable
from pathlib import Path

import pytest

from steptrace.config.plan import Plan, make_plan

ROOT = Path(__file__).parents[2]
INIT = ROOT / "src" / "steptrace" / "commands" / "init" / "files"
STUDY = """
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
def digests(plan_of: Callable[..., Plan], copy: Path) -> Callable[[], dict[str, str]]:
    """A function that plans the study and gives the digests of its trainings."""
    for name, text in PLUGINS.items():
        path = copy / "plugins" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (copy / "config" / "loss" / "mine.yaml").write_text("_target_: mine.losses.Loss\n")

    def planned() -> dict[str, str]:
        plan = plan_of(STUDY, allow_targets=["mine"])
        return {variant: plan.key("training", study, variant) for study, variant in plan.pairs}

    return planned


def test_an_edit_concerns_the_variants_that_import_the_file(digests: Callable[..., dict[str, str]], copy: Path) -> None:
    before = digests()
    for name, text in {
        "mine/losses.py": "from .parts import half\nfrom shared import value\nclass Loss:\n    file = 'weights.yaml'\n",
        "mine/parts.py": "half = 0.25\n", "mine/weights.yaml": "a: 2\n", "mine/__init__.py": "value = 1\n",
        "shared.py": "value = 2\n",
    }.items():  # fmt: skip
        (copy / "plugins" / name).write_text(text)
        after = digests()
        assert after["other"] != before["other"], name
        assert after["plain"] == before["plain"], name
        before = after


def test_an_edit_of_a_file_that_no_variant_imports_concerns_none(
    digests: Callable[..., dict[str, str]], copy: Path
) -> None:
    before = digests()
    for name, text in {
        "unused.py": "value = 2\n", "NOTES.md": "notes", "mine/new.py": "value = 1\n",
        "mine/parts.py": "half = 0.5  # a comment\n",
    }.items():  # fmt: skip
        (copy / "plugins" / name).write_text(text)
    assert digests() == before


def test_a_module_that_imports_by_name_depends_on_its_whole_folder(
    digests: Callable[..., dict[str, str]], copy: Path
) -> None:
    (copy / "plugins" / "shared.py").write_text("import importlib\nvalue = importlib.import_module('unused').value\n")
    before = digests()
    (copy / "plugins" / "unused.py").write_text("value = 2\n")
    assert digests()["other"] != before["other"]


def test_an_edit_in_the_folder_of_init_trains_the_study_that_uses_the_file(tmp_path: Path) -> None:
    for file in (path for path in INIT.rglob("*") if path.is_file() and "__pycache__" not in path.parts):
        target = tmp_path / file.relative_to(INIT)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.read_bytes())

    def digests() -> dict[tuple[str, str], str]:
        plan = make_plan(ROOT, tmp_path, {"scale": "cpu"})
        return {pair: plan.key("training", *pair) for pair in plan.pairs}

    uses = {"NOTES.md": set(), "plugins/other.py": set(), "train.py": {"training"}, "plugins/losses.py": {"masks"}}
    before = digests()
    for name, studies in uses.items():
        path = tmp_path / name
        path.write_text((path.read_text() if path.exists() else "") + "\nedited = 1\n")
        after = digests()
        assert {pair[0] for pair in after if after[pair] != before[pair]} == studies
        before = after
