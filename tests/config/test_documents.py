"""The documents' examples are what they say: YAML that loads, a study that runs, commands that any shell takes."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import yaml

from steptrace.config.plan import Plan, make_plan

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "config" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^( *)```(\w+)\n(.*?)^ *```", re.DOTALL | re.MULTILINE)


def blocks(path: Path, *kinds: str) -> list[str]:
    matches = BLOCK.findall(path.read_text())
    return [re.sub(f"^{indent}", "", text, flags=re.MULTILINE) for indent, kind, text in matches if kind in kinds]


EXAMPLES = [
    pytest.param(text, id=f"{path.name}-{n}") for path in DOCUMENTS for n, text in enumerate(blocks(path, "yaml"))
]


@pytest.mark.parametrize("text", EXAMPLES)
def test_every_example_in_yaml_is_yaml(text: str) -> None:
    assert isinstance(yaml.safe_load(text), dict)


def write_named(page: str, folder: Path) -> None:
    """Write the blocks of a page that begin with the name of a file."""
    for text in (text for text in blocks(ROOT / page, "yaml", "python") if re.match(r"# [\w./-]+\n", text)):
        path = folder / text.splitlines()[0].removeprefix("# ")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


@pytest.fixture
def own_study(copy: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Plan]:
    """The study of one's own that config/README.md gives, written where its blocks say and planned."""
    write_named("config/README.md", copy)
    monkeypatch.chdir(copy)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield make_plan(copy, copy, {"scale": "cpu"})
    sys.modules.pop("mine", None)


@pytest.mark.parametrize(("study", "variants"), [("half", ["fp32", "bf16"]), ("focal", ["plain", "focal"])])
def test_the_studies_of_studies_md_can_be_planned(
    copy: Path, monkeypatch: pytest.MonkeyPatch, study: str, variants: list[str]
) -> None:
    write_named("docs/studies.md", copy)
    monkeypatch.chdir(copy)
    plan = make_plan(copy, copy, {"scale": "cpu", "studies": [study]})
    assert [variant for _, variant in plan.pairs] == variants


def test_the_study_of_one_s_own_is_complete(own_study: Plan, copy: Path) -> None:
    from steptrace.train.equivalence import EQUIVALENCE_FILE
    from steptrace.train.equivalence import main as check

    assert own_study.pairs == [("mine", "masked"), ("mine", "plain"), ("mine", "plain_bf16")]
    for study, variant in own_study.pairs:
        folder = copy / "results" / study
        config, reference = folder / variant / "config.yaml", folder / own_study.variant(study, variant).reference
        assert check(["--config", str(config), "--reference", str(reference), "--out", str(folder / variant)]) == 0
        assert yaml.safe_load((folder / variant / EQUIVALENCE_FILE).read_text())["status"] == "same"


@pytest.mark.parametrize("name", ["workflow", "study"])
def test_the_tables_of_both_files_name_every_key_and_default(name: str) -> None:
    from steptrace.config.settings import Settings
    from steptrace.config.study_file import StudyFile

    fields = msgspec.structs.fields({"workflow": Settings, "study": StudyFile}[name])
    title = {"workflow": "## workflow.yaml", "study": "## A study file"}[name]
    section = (ROOT / "config" / "README.md").read_text().split(f"{title}\n")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in re.findall(r"^\| `.*\|$", section, re.MULTILINE)]
    named = [key for row in rows for key in re.findall(r"`(\w+)`", row[0])]
    assert sorted(named) == sorted(field.name for field in fields)
    defaults = {field.name: field.default for field in fields if not field.required}
    for key, default, _ in rows if name == "workflow" else ():
        wanted = defaults.get(key.strip("`"))
        wanted = wanted if isinstance(wanted, int | str) else None
        assert default.strip("`") == (str(wanted) if wanted else default)
        assert wanted or default in ("all", "none")


SHELL = [
    *DOCUMENTS,
    *(ROOT / name / "README.md" for name in ("profiles", "ext/giou")),
    *(ROOT / "config").rglob("*.yaml"),
]


@pytest.mark.parametrize("path", SHELL, ids=lambda path: str(path.relative_to(ROOT)))
def test_brackets_in_commands_are_quoted(path: Path) -> None:
    """Some shells take them for a pattern of file names."""
    commands = re.findall(r"--config [^`\n]*", path.read_text())
    assert not [command for command in commands if "[" in re.sub(r"'[^']*'|\"[^\"]*\"", "", command)]
