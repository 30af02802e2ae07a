"""A file of another kind than what was asked for is called by its kind, not by its version."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from builders import TraceBuilder, training_step
from documents import fill
from steptrace.cli import main
from steptrace.document_schemas import DOCUMENTS
from steptrace.documents.base import read, version_of, write
from steptrace.documents.comparison import Comparison
from steptrace.documents.kinds import kind_of, kinds
from steptrace.documents.summary import Summary
from steptrace.errors import RecordError


@pytest.mark.parametrize("name", DOCUMENTS)
def test_each_document_is_known_by_its_keys(name: str, tmp_path: Path) -> None:
    path = write(tmp_path / f"{name}.json", fill(DOCUMENTS[name], {}))
    found = kind_of(json.loads(path.read_text()))
    assert found is not None
    assert found.document is DOCUMENTS[name]


@pytest.mark.parametrize("name", [name for name in DOCUMENTS if name != "comparison"])
def test_another_document_is_named(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(write(tmp_path / "some.json", fill(DOCUMENTS[name], {})))
    assert main(["compare", path, path]) == 2
    message = capsys.readouterr().err
    assert f"{name}.json" in message
    assert "version" not in message


def test_one_of_another_version_is_known_too() -> None:
    """It lacks a key and has one that this version does not know."""
    content: dict[str, Any] = {"warnings": [], "traces": [], "schema_version": 3, "old": 1}
    found = kind_of(content)
    assert found is not None
    assert found.document is Summary


@pytest.mark.parametrize(
    "content", [{}, {"schema_version": 9}, {"a": 1}, [], "text", 3, {"traces": [], "a": 1, "b": 2}]
)
def test_anything_else_is_of_no_kind(content: object) -> None:
    assert kind_of(content) is None


def test_a_file_of_the_kind_and_of_another_version_says_its_version(tmp_path: Path) -> None:
    path = write(tmp_path / "comparison.json", fill(Comparison, {}))
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "schema_version": version_of(Comparison) - 1}))
    with pytest.raises(RecordError, match=f"version {version_of(Comparison) - 1}"):
        read(path, Comparison)


@pytest.mark.parametrize("packed", [True, False])
def test_a_trace_is_named(packed: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: FBT001
    builder = TraceBuilder()
    training_step(builder)
    path = builder.write(tmp_path / "trace.json")
    if packed:
        path.write_bytes(gzip.compress(path.read_bytes()))
    assert main(["compare", str(path), str(path)]) == 2
    message = capsys.readouterr().err
    assert "steptrace diff" in message
    assert "version" not in message


def test_a_document_is_no_trace_and_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(write(tmp_path / "comparison.json", fill(Comparison, {})))
    assert main(["analyze", path, "--out", str(tmp_path / "out")]) == 2
    message = capsys.readouterr().err
    assert "comparison.json" in message
    assert "steptrace compare" in message


@pytest.mark.parametrize("left", ["run0/run.json", "run.json", "summary.json"])
def test_a_folder_of_a_run_is_no_study(left: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / left).parent.mkdir(exist_ok=True)
    (tmp_path / left).write_text("{}")
    assert main(["compare", str(tmp_path), str(tmp_path)]) == 2
    assert "steptrace diff" in capsys.readouterr().err


def test_kinds_have_names_of_their_own() -> None:
    assert len({kind.name for kind in kinds()}) == len(kinds())
    assert all(kind.next_step for kind in kinds())
