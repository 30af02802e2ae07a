"""The documents' studies can be planned and run as they stand there, and the tables of keys are whole."""

import re
import sys
from pathlib import Path

import msgspec
import pytest
import yaml

from pages import ROOT, blocks
from steptrace.config.plan import make_plan
from steptrace.run_folder import EQUIVALENCE_FILE


def write_named(page: str, folder: Path) -> None:
    """Write the blocks of a page that begin with the name of a file."""
    for text in (text for text in blocks(page, "yaml", "python") if re.match(r"# [\w./-]+\n", text)):
        path = folder / text.splitlines()[0].removeprefix("# ")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(("study", "variants"), [("half", ["fp32", "bf16"]), ("focal", ["plain", "focal"])])
def test_the_studies_of_studies_md_can_be_planned(
    copy: Path, monkeypatch: pytest.MonkeyPatch, study: str, variants: list[str]
) -> None:
    write_named("docs/studies.md", copy)
    monkeypatch.chdir(copy)
    plan = make_plan(copy, copy, {"scale": "cpu", "studies": [study]})
    assert [variant for _, variant in plan.variants] == variants


def test_the_study_of_one_s_own_is_complete(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that config/README.md gives, written where its blocks say and planned."""
    from steptrace.equivalence.main import main as check

    write_named("config/README.md", copy)
    monkeypatch.chdir(copy)
    monkeypatch.setattr(sys, "path", [*sys.path])
    own_study = make_plan(copy, copy, {"scale": "cpu"})
    own_study.write_snapshots()
    assert list(own_study.variants) == [("mine", "masked"), ("mine", "plain"), ("mine", "plain_bf16")]
    for study, variant in own_study.variants:
        folder = copy / "results" / study
        config = folder / variant / "config.yaml"
        reference = folder / own_study.variants[study, variant].reference
        assert check(["--config", str(config), "--reference", str(reference), "--out", str(folder / variant)]) == 0
        assert yaml.safe_load((folder / variant / EQUIVALENCE_FILE).read_text())["status"] == "same"
    sys.modules.pop("mine", None)


@pytest.mark.parametrize("name", ["workflow", "study"])
def test_the_tables_of_both_files_name_every_key_and_default(name: str) -> None:
    from steptrace.config.settings import WorkflowSettings
    from steptrace.config.study_file import StudyFile

    fields = msgspec.structs.fields({"workflow": WorkflowSettings, "study": StudyFile}[name])
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
