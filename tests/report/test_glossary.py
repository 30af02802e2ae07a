"""The glossary of the pages: every key that a section names is in it, and every key in it is named by a section."""

import re
from pathlib import Path

from steptrace import report
from steptrace.documents.step_figures import STEP_FIGURES
from steptrace.report.page.definitions import definitions, glossary

_REPORT = Path(report.__file__).parent
_TEXT = (_REPORT / "page" / "glossary.md").read_text(encoding="utf-8")


def test_every_item_of_the_file_is_read() -> None:
    keys = re.findall(r"^- `(\w+)`", _TEXT, re.MULTILINE)
    assert len(keys) == len(set(keys)) == len(glossary()) - len(STEP_FIGURES)
    assert len(re.findall(r"^  - ", _TEXT, re.MULTILINE)) == sum(d.whole is not None for d in glossary().values())
    for definition in glossary().values():
        for each in (definition, *([definition.whole] if definition.whole else [])):
            assert each.meaning.endswith(".")
            assert "\n" not in each.meaning
            assert "**" not in each.term + each.meaning


def test_every_key_is_named_by_a_section() -> None:
    sources = "".join(path.read_text(encoding="utf-8") for path in _REPORT.rglob("*") if path.suffix in (".py", ".j2"))
    assert [key for key in re.findall(r"^- `(\w+)`", _TEXT, re.MULTILINE) if f'"{key}"' not in sources] == []


def test_a_trace_without_steps_is_told_in_words_of_its_own() -> None:
    (of_steps,), (whole,) = definitions(["syncs"]), definitions(["syncs"], steps=False)
    assert of_steps.term == "Syncs per step"
    assert whole.term == "Syncs"
    assert definitions(["ratio"], steps=False) == definitions(["ratio"])
