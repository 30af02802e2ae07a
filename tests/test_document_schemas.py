"""The documents' schemas are committed as they are made, and refuse what is no such document."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from documents import fill, plain
from steptrace.config.settings import read_yaml
from steptrace.document_schemas import DOCUMENTS, SETTINGS, schema_of, settings_schema_of
from steptrace.documents.base import Document, convert
from steptrace.documents.comparison import Comparison, Verdict
from steptrace.documents.summary import Summary
from steptrace.errors import RecordError

#: Something of each kind to be checked.
PARTS: dict[type[Document], dict[str, Any]] = {
    Summary: {"traces": [{"syncs": {"sites": [{}]}}]},
    Comparison: {"variants": [{"runs": [{}]}], "gates": [{"limits": {"at_most": 1}, "value": 2}]},
    Verdict: {"failed": [{"run": "run0"}], "differs": [{}], "gates": [{"value": None}]},
}
ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "schemas"


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_committed_schema_is_the_one_that_is_made(name: str) -> None:
    committed = json.loads((FOLDER / f"{name}.schema.json").read_text(encoding="utf-8"))
    assert committed == json.loads(json.dumps(schema_of(name))), "python -m steptrace.document_schemas docs"


@pytest.mark.parametrize("name", SETTINGS)
def test_the_committed_schema_of_settings_is_the_one_that_is_made(name: str) -> None:
    committed = json.loads((FOLDER / f"{name}.schema.json").read_text(encoding="utf-8"))
    assert committed == json.loads(json.dumps(settings_schema_of(name))), "python -m steptrace.document_schemas docs"


def test_the_settings_and_studies_that_come_with_steptrace_fit_their_schemas() -> None:
    checked = 0
    for folder in (ROOT / "config", ROOT / "src" / "steptrace" / "commands" / "init" / "files" / "config"):
        jsonschema.validate(read_yaml(folder / "workflow.yaml"), settings_schema_of("workflow"))
        for file in folder.glob("study/*.yaml"):
            jsonschema.validate(read_yaml(file), settings_schema_of("study"))
            checked += 1
    assert checked > 5


@pytest.mark.parametrize(
    "wrong",
    [
        {"studies": "giou"},
        {"repeats": 0},
        {"scale": ""},
        {"typo": 1},
        {"gates": {"giou": {"*": {"ratio.low": {"atleast": 1}}}}},
        {"timeout_minutes": -1},
        {"traces": {"a": 1}},
    ],
)
def test_wrong_settings_do_not_fit(wrong: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, settings_schema_of("workflow"))


@pytest.mark.parametrize("kind", PARTS)
def test_a_document_fits_its_schema_and_another_does_not(kind: type[Document]) -> None:
    schema = schema_of(kind.__name__.lower())
    document = plain(fill(kind, PARTS[kind]))
    jsonschema.validate(document, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document | {"schema_version": "one"}, schema)


def test_an_unknown_or_missing_key_is_refused_with_its_place() -> None:
    with pytest.raises(RecordError, match=r"launch_coverage.*\$\.traces\[0\]\.quality"):
        convert({"schema_version": 1, "warnings": [], "traces": [_without_coverage()]}, Summary)


def _without_coverage() -> dict[str, object]:
    trace = plain(fill(Summary, {"traces": [{}]}))["traces"][0]
    del trace["quality"]["launch_coverage"]
    return dict(trace)


def test_schemas_are_not_written_without_the_docstrings_that_describe_them(tmp_path):
    code = (
        "import sys; from pathlib import Path; from steptrace.document_schemas import write; write(Path(sys.argv[1]))"
    )
    done = subprocess.run(
        [sys.executable, "-OO", "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=1500, check=False
    )
    assert done.returncode != 0
    assert "ConfigError" in done.stderr
    assert not any(tmp_path.iterdir())
